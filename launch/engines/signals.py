"""Signals to the launcher, as flags that it looks at in its own time."""

import signal
import threading

from launch.engines import prepare

_NOHUP = (signal.SIGHUP, signal.SIG_IGN)


class Signals:
  """Signals as flags, inside a context.

  Attributes:
    interrupts: Ctrl-Cs that nothing was done about.
    terminated: SIGTERM came.
    asked: a node called lp.stop(); from another process, that is STOP_SIGNAL.
  """

  def __init__(self):
    self.interrupts = 0
    self.terminated = False
    self.asked = False
    self._hung_up = False
    self._previous = {}

  def __enter__(self) -> 'Signals':
    # Python allows it in the main thread only.
    if threading.current_thread() is threading.main_thread():
      for number, handler in (
        (signal.SIGINT, self.interrupt),
        (signal.SIGHUP, self.hang_up),
        (signal.SIGTERM, self.terminate),
        (prepare.STOP_SIGNAL, self.ask),
      ):
        if (number, signal.getsignal(number)) == _NOHUP:
          continue
        self._previous[number] = signal.signal(number, handler)
    return self

  def __exit__(self, *unused) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def interrupt(self, *unused) -> None:
    self.interrupts += 1

  def hang_up(self, *unused) -> None:
    # The shell and the kernel both say so; that is no second Ctrl-C.
    if not self._hung_up:
      self._hung_up = True
      self.interrupt()

  def terminate(self, *unused) -> None:
    self.terminated = True

  def ask(self, *unused) -> None:
    self.asked = True
