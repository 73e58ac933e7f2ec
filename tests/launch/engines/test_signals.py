"""Signals to the launcher, without a launcher."""

import signal

import pytest

from launch.engines import signals as signals_lib


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
