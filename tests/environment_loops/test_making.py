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
import psutil
import pytest

from murmuration.environment_loops import building
from murmuration.environment_loops import environments
from murmuration.environment_loops import making


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


# Starts a process for each line that it reads, and says its pid.
STARTS = """
import subprocess, sys
for line in sys.stdin:
  print(subprocess.Popen(['sleep', '600']).pid, flush=True)
"""


def test_only_what_was_started_inside_is_killed():
  with subprocess.Popen(
    [sys.executable, '-c', STARTS],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    bufsize=1,
  ) as other:
    with making.Watched('Any-v0'):
      other.stdin.write('go\n')
      theirs = psutil.Process(int(other.stdout.readline()))
      ours = subprocess.Popen(['sleep', '600'])
    try:
      ours.wait(timeout=60)
      assert theirs.is_running()
    finally:
      theirs.kill()
      other.stdin.close()


def test_steps_are_counted_while_it_moves(monkeypatch, capfd):
  monkeypatch.setattr(making, 'SAY_S', 0.05)
  said = ''
  with making.Watched('Long-v0') as watched:
    until = time.monotonic() + 60
    while said.count('playing Long-v0') < 2 and time.monotonic() < until:
      watched.moved()
      said += capfd.readouterr().err
  first, last = re.findall(r'playing Long-v0: ([\d,]+) steps', said)[:2]
  assert 0 < int(first.replace(',', '')) < int(last.replace(',', ''))


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
