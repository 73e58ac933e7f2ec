"""Signals to the launcher, without a launcher."""

import signal
import subprocess
import sys

import pytest

from murmuration.launch.engines import signals as signals_lib


@pytest.fixture
def of_a_terminal():
  """A hang-up ends this process: under nohup it would be ignored."""
  before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
  yield
  signal.signal(signal.SIGHUP, before)


def test_a_hang_up_that_comes_twice_is_one(of_a_terminal):
  with signals_lib.Signals() as signals:
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    assert signals.interrupts == 1
    signal.raise_signal(signal.SIGINT)
    assert signals.interrupts == 2


FORKS = """
import multiprocessing, signal, sys, time
import launchpad as lp
from murmuration.launch import engines

def forks():
  context = multiprocessing.get_context('fork')
  for _ in range(20):  # the signal comes early or late
    process = context.Process(target=time.sleep, args=(300,))
    process.start()
    time.sleep(0.01)
    process.terminate()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM, process.exitcode

program = lp.Program('forks')
with program.group('forks'):
  program.add_node(lp.PyNode(forks))
outcome = engines.run(program, sys.argv[1])
print(outcome.reason)
sys.exit(outcome.exit_code)
"""


@pytest.mark.parametrize('engine', ['local_mp', 'local_mt'])
def test_what_an_environment_forks_ends_at_a_sigterm(engine):
  done = subprocess.run(
    [sys.executable, '-c', FORKS, engine],
    stdout=subprocess.PIPE,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stdout
