"""Signals to the launcher, as flags that its loop checks."""

import collections
import mmap
import os
import signal
import threading

_TAKEN = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_NOHUP = (signal.SIGHUP, signal.SIG_IGN)

_registered = False
_held = threading.local()


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
    default_in_forks()
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


def default_in_forks() -> None:
  """Has SIGTERM end what an environment forks, such as a pool of processes.

  Those would otherwise have the handler of their node, which does not end them,
  and `Pool.terminate` would wait for them for ever.
  """
  global _registered
  if not _registered:
    _registered = True
    os.register_at_fork(
      before=_hold, after_in_parent=_release, after_in_child=_default
    )


def _hold() -> None:
  # Python forgets a signal that comes before its new process is set up.
  _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
  signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _default() -> None:
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  _release()
