"""An environment that is made in a command's own process, and how that ends."""

from concurrent import futures
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import gymnasium
from gymnasium.envs.classic_control import cartpole
import pytest

from environment_loops import building
from environment_loops import environments
from environment_loops import making

ROOT = pathlib.Path(__file__).parents[2]
HANGS = """
import time
from gymnasium.envs.classic_control import cartpole

class Hangs(cartpole.CartPoleEnv):
  def __init__(self):
    super().__init__()
    time.sleep(1000)  # line 8
"""
COMMAND = """
import sys
from environment_loops import making
making.SAY_S, making.LIMIT_S = 0.5, 3.0
from gymnasium.envs.classic_control import cartpole  # which takes its time
from launch import command_line
sys.exit(command_line.main(['dqn', '--config.environment=hangs:Hangs']))
"""


class Rude(gymnasium.Env):
  """Does what concerns all of its process."""

  action_space = gymnasium.spaces.Discrete(2)
  observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

  def __init__(self):
    os.chdir('/')
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class Leaves(Rude):
  def __init__(self):
    sys.exit(0)


class LeavesLater(gymnasium.Env):
  def close(self):
    sys.exit(0)


@pytest.fixture
def register():
  def add(kind):
    gymnasium.register(f'{kind.__name__}InMaking-v0', entry_point=kind)
    return f'{kind.__name__}InMaking-v0'

  yield add
  for name in [name for name in gymnasium.registry if 'InMaking' in name]:
    del gymnasium.registry[name]


def test_an_environment_that_ends_the_process_is_refused(register):
  with pytest.raises(environments.EnvironmentRefused, match='SystemExit: 0'):
    building.build(register(Leaves))


def test_one_that_ends_the_process_where_it_is_closed_costs_nothing(caplog):
  with caplog.at_level(logging.WARNING):
    building.close('LeavesLater', LeavesLater())
  assert 'close() of LeavesLater failed' in caplog.text
  assert 'SystemExit: 0' in caplog.text


def test_what_concerns_all_of_the_process_is_undone(
  register, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  before = signal.getsignal(signal.SIGCHLD)
  name = register(Rude)
  watched = making.Watched(name)
  for _ in range(2):
    with watched:
      building.build(name).close()
    assert pathlib.Path.cwd() == tmp_path
    assert signal.getsignal(signal.SIGCHLD) == before


@pytest.mark.long
def test_one_that_hangs_is_said_with_its_place_and_then_refused(tmp_path):
  (tmp_path / 'hangs.py').write_text(HANGS)
  done = subprocess.run(
    [sys.executable, '-c', COMMAND],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=180,
  )
  assert done.returncode == 2, done
  *words, end = done.stderr.splitlines()
  assert words and all('still building hangs:Hangs (' in x for x in words)
  assert end.startswith('error: hangs:Hangs was not built within 3 s')
  assert 'hangs.py:8' in end
  assert list(tmp_path.glob('runs')) == []


def test_steps_are_counted_while_it_moves(monkeypatch):
  monkeypatch.setattr(making, 'SAY_S', 0.05)
  steps = []

  def say(words):  # on a busy machine also that a step takes long
    if found := re.fullmatch(
      r'playing Long-v0: ([\d,]+) steps in \d+ s', words
    ):
      steps.append(int(found[1].replace(',', '')))

  monkeypatch.setattr(making, '_say', say)
  with making.Watched('Long-v0') as watched:
    until = time.monotonic() + 60
    while len(steps) < 2 and time.monotonic() < until:
      watched.moved()
  assert 0 < steps[0] < steps[1]


def test_threads_that_outlive_an_environment_are_said(register, capfd):
  end = threading.Event()
  threads = [threading.Thread(target=end.wait, daemon=d) for d in (True, False)]

  class Threaded(cartpole.CartPoleEnv):
    def __init__(self):
      super().__init__()
      for thread in threads:
        thread.start()

  name = register(Threaded)
  try:
    environments.spec(name)
  finally:
    end.set()
  said = capfd.readouterr().err
  assert f'{name} was closed and leaves threads behind ({threads[1].name})' in (
    said
  )


def test_threads_that_end_by_themselves_are_not_said(
  register, capfd, monkeypatch
):
  monkeypatch.setattr(making, '_ENDS_S', 60.0)  # they do, when they are run

  class Pooled(cartpole.CartPoleEnv):
    def __init__(self):
      super().__init__()
      self._pool = futures.ThreadPoolExecutor(1)
      self._pool.submit(int).result()

  class Told(cartpole.CartPoleEnv):
    def __init__(self):
      super().__init__()
      self._end = threading.Event()
      threading.Thread(target=self._work).start()

    def _work(self):
      self._end.wait()
      time.sleep(0.05)

    def close(self):
      self._end.set()

  for kind in (Pooled, Told):
    environments.spec(register(kind))
  assert 'threads' not in capfd.readouterr().err
