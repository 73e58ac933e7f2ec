"""Settings of every test."""

import faulthandler
import gc
import os
import pathlib
import sys
from typing import TextIO

import pytest

from murmuration.replay import isolation

pytest_plugins = ['tests.commands']

# Before anything imports TensorFlow: its notes would bury a failing test's.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

# What `make test` was told, such as ARGS=-x, it hands to every make of a test.
for _name in ('MAKEFLAGS', 'MAKEOVERRIDES', 'ARGS'):
  os.environ.pop(_name, None)

# Commands that a test calls in this process must not move it to another
# network: threads of gRPC that are there by then would stay behind, and no
# server of a later test would be found. Children (strangers.py) may enter one.
isolation._entered = True

# pytest-timeout raises in the main thread, which does nothing while that thread
# waits inside Reverb. Past this, the process ends, with the stack of every
# thread; a test with a longer timeout of its own has as much more.
_HARD_LIMIT_S = 420
_MORE_S = 180  # of the hard limit than of the timeout

_STDERR = pytest.StashKey[TextIO]()


def pytest_configure(config):
  # A copy, as pytest puts a file in place of the error output; here, unlike
  # where this file is imported, it is not there.
  config.stash[_STDERR] = os.fdopen(os.dup(2), 'w')


def pytest_sessionfinish():
  # TensorFlow removes the source files that it has made at a process's exit. A
  # worker that takes long to get there is killed.
  for name, module in list(sys.modules.items()):
    if name.startswith('__autograph_generated_file'):
      pathlib.Path(module.__file__).unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
  """Bounds the time of one test, wherever it is stuck."""
  own = item.get_closest_marker('timeout')
  limit_s = _HARD_LIMIT_S
  if own is not None:
    limit_s = max(limit_s, own.args[0] + _MORE_S)
  faulthandler.dump_traceback_later(
    limit_s, exit=True, file=item.config.stash[_STDERR]
  )
  try:
    return (yield)
  finally:
    faulthandler.cancel_dump_traceback_later()


# Who asks for one of these starts whole programs, or many commands.
_WHOLE = {'start_run', 'programs', 'study_commands', 'project', 'made'}

# Files that take longest, in either half: begun last, one of them would run
# while all others have ended.
_LONGEST = (
  'test_agents_and_topologies.py',
  'test_library.py',
  'test_ray.py',
  'test_gossip.py',
  'test_silence.py',
  'test_actor_learner_faults.py',
  'test_run_parameter_server.py',
  'test_run_swarm.py',
  'test_shards.py',
  'test_processes.py',
  'test_ppo_learner.py',
  'test_isolated_runs.py',
  'test_dropped_episodes.py',
  'test_replay_checkpoints.py',
  'test_wheel.py',
  'test_pso_ppo.py',
  'test_learner.py',
)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
  """Marks as `long` what `make test` leaves to `make test-all`."""
  for item in items:
    whole = _WHOLE & set(item.fixturenames)
    if whole and not item.get_closest_marker('main_job'):
      item.add_marker('long')
  places = {name: place for place, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish():
  """Has the collector go its rounds seldom, and past what was imported.

  A tenth of the time in which TensorFlow traces is its.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True)
def _progress_is_not_said(monkeypatch):
  """A busy machine takes long for any game, and tests compare what is said."""
  if making := sys.modules.get('murmuration.environment_loops.making'):
    monkeypatch.setattr(making, 'SAY_S', 3600.0)


@pytest.fixture(autouse=True)
def _not_compiled(request, monkeypatch):
  """Learners in the test's process are not compiled by XLA.

  That takes seconds, and a test makes a few calls. Tests that compare both have
  a parameter `compiled`; programs in processes of their own compile.
  """
  updates = sys.modules.get('murmuration.agents.updates')
  if updates is None or 'compiled' in request.fixturenames:
    return
  make = updates.make
  monkeypatch.setattr(
    updates,
    'make',
    lambda learner, exchange, compiled: make(learner, exchange, False),
  )
