"""How a run on Ray begins, or does not; with a Ray that the test plays."""

import os
import signal
import sys

import launchpad as lp
import pytest

from murmuration.launch import engines
from murmuration.launch import rpc
from murmuration.launch.engines import state
from murmuration.launch.engines.cluster import engine
from tests.launch.engines import fake_ray
from tests.launch.engines import toys


@pytest.fixture
def cluster(monkeypatch):
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  yield fake_ray.play(monkeypatch)
  # Ray's own for SIGTERM would end this process without a word.
  after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  assert after == before


def run(directory, **options):
  """Runs a program; the outcome, and the states that were shown."""
  made = lp.Program('test')
  with made.group('waiter'):
    for index in range(2):
      made.add_node(rpc.Node(toys.Waiter, str(directory), f'waiter{index}'))
  shown = []
  outcome = engines.run(
    made,
    'ray',
    run_dir=directory,
    on_tick=shown.append,
    ray=engines.Options(**options),
  )
  return outcome, shown


SIGNALS = [
  (signal.SIGINT, state.INTERRUPTED),
  (signal.SIGTERM, state.TERMINATED),
]


@pytest.mark.parametrize('number, code', SIGNALS)
@pytest.mark.parametrize('breaks', [False, True])
def test_a_signal_while_ray_starts_ends_the_run_as_any_other(
  cluster, tmp_path, number, code, breaks
):
  def init():
    os.kill(os.getpid(), number)
    if breaks:  # a signal to the whole group ends Ray's own processes first
      raise RuntimeError('Failed to start GCS.')

  cluster.on_init = init
  outcome, shown = run(tmp_path)
  assert outcome.exit_code == code
  assert [(node.name, node.state) for node in outcome.nodes] == [
    ('waiter/0', 'stopped'),
    ('waiter/1', 'stopped'),
  ]
  assert [seen.stopping for seen in shown] == [True]
  assert cluster.agents == []


def test_a_sigterm_that_ray_hears_ends_the_run_as_any_other(cluster, tmp_path):
  def init():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    os.kill(os.getpid(), signal.SIGTERM)

  cluster.on_init = init
  outcome, _ = run(tmp_path)
  assert outcome.exit_code == state.TERMINATED


@pytest.mark.parametrize('number, code', SIGNALS)
def test_a_signal_while_the_agent_of_this_host_starts_ends_the_run(
  cluster, tmp_path, number, code
):
  cluster.on_wait = lambda: os.kill(os.getpid(), number)
  outcome, _ = run(tmp_path)
  assert outcome.exit_code == code


def test_why_the_agent_of_this_host_did_not_start_is_said(cluster, tmp_path):
  trace = 'ray::Agent.__init__()\n  File "host.py"\nRuntimeError: no room'

  def answered():
    for agent in cluster.agents:
      agent.last('poll').answer(fake_ray.RayError(trace))

  cluster.on_wait = answered
  with pytest.raises(engines.Refused, match='no room'):
    run(tmp_path)


def test_what_no_host_could_ever_hold_is_refused(cluster, tmp_path):
  with pytest.raises(engines.Refused, match='waiter/0.*GPU=2'):
    run(tmp_path, resources=['waiter:gpus=2'])
  assert cluster.places == []


def test_what_ray_says_where_it_does_not_start_is_kept(cluster, tmp_path):
  cluster.on_init = lambda: 1 / 0
  with pytest.raises(engines.Refused, match='division by zero'):
    run(tmp_path)


def test_the_modules_of_a_user_are_sent_and_those_of_packages_compared(
  tmp_path, monkeypatch
):
  (tmp_path / 'my_task.py').write_text('')
  (tmp_path / 'my_package').mkdir()
  (tmp_path / 'my_package' / '__init__.py').write_text('from . import deep')
  (tmp_path / 'my_package' / 'deep.py').write_text('')
  (tmp_path / 'my_space').mkdir()  # without an __init__.py
  (tmp_path / 'my_space' / 'inner.py').write_text('')
  monkeypatch.syspath_prepend(tmp_path)
  for name in ('my_task', 'my_package', 'my_space.inner'):
    __import__(name)
  sent = engine.modules()
  own = {name: path for name, path in sent.items() if name.startswith('my_')}
  assert own == {
    'my_task': str(tmp_path / 'my_task.py'),
    'my_package': str(tmp_path / 'my_package'),
    'my_space': str(tmp_path / 'my_space'),
  }
  assert 'murmuration' in sent
  assert not {'numpy', 'json', 'pytest', '__main__'} & sent.keys()
  versions = engine.versions(sent)
  assert {'Python', 'numpy', 'pytest'} <= versions.keys()
