"""Signals to the launcher, as flags that its loop checks."""

import collections
import mmap
import signal
import threading

_TAKEN = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_NOHUP = (signal.SIGHUP, signal.SIG_IGN)


class Signals:
  """Counts signals while its context is open."""

  def __init__(self):
    self._came: collections.Counter[int] = collections.Counter()
    self._previous = {}
    # A byte of memory that forked nodes share with the launcher.
    self._asked = mmap.mmap(-1, 1)

  @property
  def interrupts(self) -> int:
    """Number of Ctrl-Cs, plus one if the terminal was closed."""
    # Shell and kernel may each send SIGHUP for one closed terminal.
    return self._came[signal.SIGINT] + bool(self._came[signal.SIGHUP])

  @property
  def terminated(self) -> bool:
    """Whether SIGTERM came."""
    return bool(self._came[signal.SIGTERM])

  @property
  def asked(self) -> bool:
    """Whether a node called lp.stop(), in this process or another."""
    return bool(self._asked[0])

  def __enter__(self) -> 'Signals':
    # Python sets signal handlers only in the main thread.
    if threading.current_thread() is threading.main_thread():
      for number in _TAKEN:
        if (number, signal.getsignal(number)) != _NOHUP:
          self._previous[number] = signal.signal(number, self._take)
    return self

  def __exit__(self, *unused) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def ask(self, mark_as_completed: bool = False) -> None:
    """Requests a stop: lp.stop() of nodes that are threads or forks of us."""
    del mark_as_completed
    self._asked[0] = 1

  def _take(self, number: int, unused) -> None:
    self._came[number] += 1
