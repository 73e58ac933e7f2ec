"""A node's signs of life: it beats, says what keeps it, and that it is done.

A node's own loop beats, never a thread beside it, which would go on beating
while the loop hangs. Who asks whether to stop beats (`Stop`), and every loop
and every wait here does; so a loop of a user's own needs no more than

    stop = pulse.stop_event()
    while not stop.is_set(): ...

A node that never does is not watched. Signs are numbers in memory that node and
launcher share: a beat costs less than a microsecond. engines/watch.py reads
them.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import logging
import mmap
import os
import pathlib
import threading
import time
from typing import Any

_logger = logging.getLogger(__name__)
_BYTES = 1024  # of a node
_BEATS, _WORK, _MOVED, _DONE, _SAID, _LENGTH, _LIFE = range(7)
_LIMIT = 56  # where it is in a slot, in bytes
_TEXT = 64
FILE = 'pulse'  # in the scratch directory
_SLICE_S = 1.0  # a long wait beats so often
_here = threading.local()


class Slot:
  """What one node shows, and the launcher sees.

  Attributes, each written by the node:
    beats: 0 until the node's loop begins; then it rises while that runs.
    work: rises with whatever the node does for the run.
    moved: rises with environment steps and updates alone.
    done: whether the node's code returned.
    said: rises with each word on a wait.
    limit_s: how long the node may be busy with `text`; 0 while it is not.
    dead: whether `text` is what it died of.
    life: the number of the node's present life; written by the launcher.
    run: the same for all lives of all nodes of one start of a program.
  """

  def __init__(self, memory: memoryview, run: str = ''):
    self.run = run
    self._numbers = memory[:_LIMIT].cast('Q')
    self._limit = memory[_LIMIT:_TEXT].cast('d')
    self._text = memory[_TEXT:]
    self._all = memory

  beats = property(lambda self: self._numbers[_BEATS])
  work = property(lambda self: self._numbers[_WORK])
  moved = property(lambda self: self._numbers[_MOVED])
  done = property(lambda self: bool(self._numbers[_DONE]))
  life = property(lambda self: self._numbers[_LIFE])
  said = property(lambda self: self._numbers[_SAID])
  limit_s = property(lambda self: self._limit[0])
  dead = property(lambda self: self._limit[0] < 0)

  @property
  def text(self) -> str:
    """What it is busy with or waits for; or died of."""
    length = min(self._numbers[_LENGTH], len(self._text))
    return bytes(self._text[:length]).decode(errors='replace')

  def read(self) -> bytes:
    """All that it shows, for `write` on another host."""
    return bytes(self._all)

  def write(self, shown: bytes) -> None:
    self._all[:] = shown

  def clear(self) -> None:
    """Before the node's next life."""
    for index in range(_LIFE):
      self._numbers[index] = 0
    self._numbers[_LIFE] += 1
    self._limit[0] = 0.0

  def add(self, index: int) -> None:
    self._numbers[index] += 1

  def waits(self, text: str) -> None:
    self.say(text)
    self.add(_SAID)

  def say(self, text: str, limit_s: float | None = None) -> None:
    encoded = text.encode(errors='replace')[: len(self._text)]
    self._numbers[_LENGTH] = 0  # whoever reads meanwhile reads nothing
    self._text[: len(encoded)] = encoded
    self._numbers[_LENGTH] = len(encoded)
    if limit_s is not None:
      self._limit[0] = limit_s


class Board:
  """The slots of a program's nodes: a file in its scratch directory."""

  def __init__(self, directory: pathlib.Path, num_nodes: int):
    """Makes the file.

    Raises:
      OSError: there is no room for it.
    """
    path = directory / FILE
    # Written, not only made longer: the first beat on a disk that is full
    # would else end its process.
    path.write_bytes(bytes(_BYTES * num_nodes))
    self.slots = [open_slot(path, index) for index in range(num_nodes)]


def open_slot(path: str | os.PathLike[str], index: int) -> Slot:
  """The slot of one node."""
  with open(path, 'r+b') as file:
    memory = memoryview(mmap.mmap(file.fileno(), 0))
  own = memory[index * _BYTES : (index + 1) * _BYTES]
  return Slot(own, pathlib.Path(path).parent.name)


def use(slot: Slot | None) -> None:
  """What this thread does is from now on the doing of that node."""
  _here.slot = slot


def here() -> Slot | None:
  """The slot of this thread's node; None in a thread that is not its loop."""
  return getattr(_here, 'slot', None)


def life() -> tuple[str, int]:
  """The run and the number of this life of the node, which rises in a run."""
  slot = here()
  if slot is None:
    return os.urandom(8).hex(), 0
  return slot.run, slot.life


def beat() -> None:
  """The loop runs."""
  slot = getattr(_here, 'slot', None)
  if slot is not None:
    slot.add(_BEATS)


def worked(moved: bool = False) -> None:
  """Something was done for the run; with `moved`, steps or updates."""
  slot = here()
  if slot is not None:
    slot.add(_WORK)
    slot.add(_BEATS)
    if moved:
      slot.add(_MOVED)


def waits(what: str) -> None:
  """Says what is waited for; to be said again every few seconds."""
  slot = here()
  if slot is not None:
    slot.add(_BEATS)
    slot.waits(what)


def done(error: str = '') -> None:
  """The node's code has returned; or `error` says what has ended it."""
  slot = here()
  if slot is None:
    return
  if error:
    slot.say(error[-_BYTES // 2 :], -1.0)
  else:
    slot.add(_DONE)


class busy:
  """Something is about to take long, and rightly so, but not longer.

  with pulse.busy('a checkpoint', 300.0): ...
  """

  def __init__(self, what: str, limit_s: float):
    self._what, self._limit_s = what, limit_s
    self._slot: Slot | None = None

  def __enter__(self) -> None:
    slot = self._slot = here()
    if slot is not None:
      slot.say(self._what, self._limit_s)
      slot.add(_BEATS)

  def __exit__(self, *unused: Any) -> None:
    slot, self._slot = self._slot, None
    if slot is not None:
      slot.say('', 0.0)
      slot.add(_BEATS)


@contextlib.contextmanager
def survives(what: str) -> Iterator[None]:
  """A disk that takes nothing must not end who writes `what`."""
  try:
    yield
  except OSError as e:
    _logger.warning('%s was not written; going on without: %s', what, e)
    waits(f'{what} was not written: {e}')


class Stop:
  """A node's stop event: whoever asks it in the node's loop beats."""

  def __init__(self, event: Any):
    self._event = event

  def is_set(self) -> bool:
    beat()
    return self._event.is_set()

  def wait(self, timeout: float | None = None) -> bool:
    """As threading.Event.wait. Who waits here has all else done."""
    until = None if timeout is None else time.monotonic() + timeout
    while True:
      worked()
      left = _SLICE_S if until is None else until - time.monotonic()
      if self._event.wait(max(0.0, min(left, _SLICE_S))):
        return True
      if until is not None and time.monotonic() >= until:
        return False

  def set(self) -> None:
    self._event.set()


def stop_event(given: Any = None) -> Any:
  """What tells a node to stop, and shows the launcher that the node lives.

  Args:
    given: set when the program is being stopped; None: Launchpad's.
  """
  if given is None:
    import launchpad as lp  # pylint: disable=g-import-not-at-top

    given = lp.stop_event()
  if here() is None:
    return given
  beat()
  return Stop(given)
