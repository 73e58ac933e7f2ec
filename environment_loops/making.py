"""An environment that is made in a command's own process, before a run begins.

    with making.Watched('CartPole-v1'):
      environment = building.build('CartPole-v1')

In a node a launcher would notice that it hangs (launch/engines/watch.py). Here
nobody would, and what it changes would be the command's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

SAY_S = 10.0
LIMIT_S = 300.0  # as in a node
_REFUSED = 2  # exit code, as of all that is refused before it starts


class Watched:
  """Says what takes long, and undoes what concerns all of the process.

  May be entered again when it was left.
  """

  def __init__(self, name: str):
    self._name = name

  def __enter__(self) -> None:
    self._caller = threading.get_ident()
    self._over = threading.Event()
    self._where: str | None = None
    with contextlib.suppress(OSError):
      self._where = os.getcwd()
    self._handler = signal.getsignal(signal.SIGCHLD)
    self._watch = threading.Thread(target=self._look, daemon=True)
    self._watch.start()

  def __exit__(self, *unused: Any) -> None:
    self._over.set()
    self._watch.join()
    if self._where is not None:
      # Directories of runs are relative.
      os.chdir(self._where)
    if threading.current_thread() is threading.main_thread():
      # Who ignores it never hears how its children have ended.
      signal.signal(signal.SIGCHLD, self._handler)

  def _look(self) -> None:
    begun = time.monotonic()
    while not self._over.wait(SAY_S):
      passed_s = time.monotonic() - begun
      if passed_s < LIMIT_S:
        _say(f'still building {self._name} ({passed_s:.0f} s), {self._place()}')
        continue
      _say(
        f'error: {self._name} was not built within {LIMIT_S:.0f} s: it is '
        f'{self._place()}. See whether it can be built by itself.'
      )
      # By an exception nobody comes out of a library that hangs.
      os._exit(_REFUSED)

  def _place(self) -> str:
    frame = sys._current_frames()[self._caller]
    return f'at {frame.f_code.co_filename}:{frame.f_lineno}'


def _say(words: str) -> None:
  print(words, file=sys.stderr, flush=True)
