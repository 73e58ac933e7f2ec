"""Signals to the launcher, without a launcher."""

import signal

from launch.engines import signals as signals_lib


def test_a_hang_up_that_comes_twice_is_one():
  with signals_lib.Signals() as signals:
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    assert signals.interrupts == 1
    signal.raise_signal(signal.SIGINT)
    assert signals.interrupts == 2
