"""An environment in a command's own process, and what it may change there.

    with making.Watched('CartPole-v1') as watched:
      environment = building.build('CartPole-v1')
      environment.reset()
      while not watched.moved():  # before each step
        environment.step(0)
      environment.close()

A node has its environment to itself. A command goes on after it, so the working
directory, signal handlers and timers are put back, and processes that the
environment leaves behind are killed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures.thread import _threads_queues
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

import psutil

SAY_S = 10.0
_ENDS_S = 1.0  # of threads and processes that close() has told to end
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_PR_SET_CHILD_SUBREAPER = 36
# Python's own helpers, which end with this process.
_HELPERS = ('multiprocessing.resource_tracker', 'multiprocessing.forkserver')


class Watched:
  """Prints how far it is, and undoes what concerns all of the process.

  The environment has to be closed inside.
  """

  def __init__(self, name: str):
    self._name = name

  def __enter__(self) -> Watched:
    self._moves = 0
    self._over = threading.Event()
    self._where: str | None = None
    with contextlib.suppress(OSError):
      self._where = os.getcwd()
    self._main = threading.current_thread() is threading.main_thread()
    if self._main:
      self._begin = time.monotonic()
      self._timers = {which: signal.getitimer(which) for which in _TIMERS}
      self._handlers = {
        number: signal.getsignal(number) for number in signal.valid_signals()
      }
    # All, as one whose parent ends meanwhile becomes a child of this process.
    self._kept = {x.pid for x in psutil.Process().children(recursive=True)}
    _adopt_orphans(True)
    self._watch = threading.Thread(target=self._look, daemon=True)
    self._watch.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._over.set()
    self._watch.join()
    if self._where is not None:
      # Directories of runs are relative.
      os.chdir(self._where)
    if self._main:
      self._put_signals_back()
    _end_all_but(self._kept)
    _adopt_orphans(False)

  def moved(self) -> bool:
    """Notes that it is built, and that a step begins; returns False.

    So it can stand where a loop asks whether to stop.
    """
    self._moves += 1
    return False

  def _put_signals_back(self) -> None:
    passed_s = time.monotonic() - self._begin
    # Timers first: the handler of a signal may be the default, which kills.
    for which, (left_s, period_s) in self._timers.items():
      left_s = max(left_s - passed_s, 1e-3) if left_s else 0.0
      signal.setitimer(which, left_s, period_s)
    for number, handler in self._handlers.items():
      # None: it was set by other means than Python.
      if handler is not None and signal.getsignal(number) != handler:
        signal.signal(number, handler)

  def _look(self) -> None:
    begin = time.monotonic()
    while not self._over.wait(SAY_S):
      passed_s = time.monotonic() - begin
      said = f'still building {self._name}'
      if self._moves:
        said = f'playing {self._name}: {self._moves:,} steps'
      print(f'{said} in {passed_s:.0f} s', file=sys.stderr, flush=True)


def _adopt_orphans(on: bool) -> None:
  """Whether descendants whose parent dies become children of this process."""
  # Otherwise one with a session of its own could not be found again.
  ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _descendants(kept: Collection[int]) -> list[psutil.Process]:
  """Living processes that this one has started, without Python's helpers.

  Children in `kept`, and what they start, are left out.
  """
  found = []
  for child in psutil.Process().children():
    if child.pid in kept:
      continue
    with contextlib.suppress(psutil.Error):
      for process in (child, *child.children(recursive=True)):
        command = ' '.join(process.cmdline())
        if process.status() != psutil.STATUS_ZOMBIE:
          if not any(name in command for name in _HELPERS):
            found.append(process)
  return found


def _end_all_but(kept: Collection[int]) -> None:
  """Waits for new descendants that are ending, and kills those that stay."""
  psutil.wait_procs(_descendants(kept), timeout=_ENDS_S)
  # Again, as one may have started another meanwhile.
  while left := _descendants(kept):
    for process in left:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    psutil.wait_procs(left, timeout=_ENDS_S)


def warn_of_threads(name: str, before: Sequence[threading.Thread]) -> None:
  """Says which threads a closed environment leaves that hold the process.

  `before` are those that ran before it was built.
  """
  until, left = time.monotonic() + _ENDS_S, []
  for thread in threading.enumerate():
    # Workers of a ThreadPoolExecutor end with the process.
    if thread.daemon or thread in before or thread in _threads_queues:
      continue
    thread.join(max(0.0, until - time.monotonic()))
    if thread.is_alive():
      left.append(thread.name)
  if left:
    print(
      f'warning: {name} was closed and leaves threads behind '
      f'({", ".join(left)}): a command ends only when they do. End them in '
      'close(), or start them with daemon=True.',
      file=sys.stderr,
      flush=True,
    )
