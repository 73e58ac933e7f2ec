"""An environment that is made, or played, in a command's own process.

    with making.Watched('CartPole-v1') as watched:
      environment = building.build('CartPole-v1')
      environment.reset()
      while not watched.moved():  # before each step
        environment.step(0)

In a node a launcher would notice that it hangs (launch/engines/watch.py). Here
nobody would, and what it changes would be the command's.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures.thread import _threads_queues
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

SAY_S = 10.0
LIMIT_S = 300.0  # as in a node
_ENDS_S = 1.0  # of threads that close() has told to end
# Exit codes: of what is refused before it starts, and of what fails later.
_REFUSED, _FAILED = 2, 1


class Watched:
  """Says how far it is and what hangs; undoes what concerns all of the process.

  May be entered again when it was left.
  """

  def __init__(self, name: str):
    self._name = name

  def __enter__(self) -> Watched:
    self._moves = 0
    self._caller = threading.get_ident()
    self._over = threading.Event()
    self._where: str | None = None
    with contextlib.suppress(OSError):
      self._where = os.getcwd()
    self._handler = signal.getsignal(signal.SIGCHLD)
    self._watch = threading.Thread(target=self._look, daemon=True)
    self._watch.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._over.set()
    self._watch.join()
    if self._where is not None:
      # Directories of runs are relative.
      os.chdir(self._where)
    if threading.current_thread() is threading.main_thread():
      # Who ignores it never hears how its children have ended.
      signal.signal(signal.SIGCHLD, self._handler)

  def moved(self) -> bool:
    """Notes that it is built, and that a step begins; returns False.

    So it can stand where a loop asks whether to stop.
    """
    self._moves += 1
    return False

  def _look(self) -> None:
    seen, passed_s, played_s = 0, 0.0, 0.0
    while not self._over.wait(SAY_S):
      # A sum of waits: none passes while the whole process is stopped.
      passed_s += SAY_S
      played_s += SAY_S
      if self._moves != seen:
        seen, passed_s = self._moves, 0.0
        _say(f'playing {self._name}: {seen:,} steps in {played_s:.0f} s')
        continue
      if passed_s < LIMIT_S:
        what = 'in a step of' if seen else 'building'
        _say(f'still {what} {self._name} ({passed_s:.0f} s), {self._place()}')
        continue
      what, advice = 'was not built', 'See whether it can be built by itself.'
      if seen:
        what, advice = 'ended no step', 'Mend what it waits for.'
      _say(
        f'error: {self._name} {what} within {LIMIT_S:.0f} s: it is '
        f'{self._place()}. {advice}'
      )
      # By an exception nobody comes out of a library that hangs.
      os._exit(_FAILED if seen else _REFUSED)

  def _place(self) -> str:
    frame = sys._current_frames()[self._caller]
    return f'at {frame.f_code.co_filename}:{frame.f_lineno}'


def _say(words: str) -> None:
  print(words, file=sys.stderr, flush=True)


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
