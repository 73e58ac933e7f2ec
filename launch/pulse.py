"""A node's heartbeat, and its reports of what it is doing or waiting for.

The node's own loop sends the heartbeat, not a second thread, which would go on
while the loop hangs. Checking whether to stop sends one (`Stop`), and all loops
and waits of this project do so; a user's own loop needs no more than

    stop = pulse.stop_event()
    while not stop.is_set(): ...

A node that never checks is not watched. Heartbeats are counters in memory that
node and launcher share, so one takes less than a microsecond. engines/watch.py
reads them.
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
_BYTES = 1024  # per node
_BEATS, _WORK, _MOVED, _DONE, _SAID, _LENGTH, _LIFE = range(7)
_LIMIT = 56  # offset in a slot, in bytes
_TEXT = 64
FILE = 'pulse'  # in the scratch directory
_SLICE_S = 1.0  # between two beats of a long wait
# The limit of a slow operation: building environments, networks or graphs, a
# checkpoint of a full replay.
LONG_S = 300.0
_PROGRESS_S = 30.0  # between two beats of one that takes longer
# How long a node waits for another, at most: an actor for parameters, for its
# policy or for a blocked table, a sampler for a server that has never answered.
# A learner or server that died restarts with back-off; the learner then traces
# its update, and a full table takes long to restore. The run logs the wait, and
# ends earlier if it stalls (engines/watch.py).
WAIT_S = 300.0
_here = threading.local()


class Slot:
  """The state that one node shows the launcher.

  Attributes, written by the node unless marked:
    beats: heartbeats; 0 until the node's loop begins.
    work: pieces of work done for the run.
    moved: those of them with environment steps or updates.
    done: whether the node's code has returned.
    said: reports that the node is waiting.
    limit_s: how long the node may be busy with `text`; 0 if it is not busy.
    dead: whether `text` is the error that ended the node.
    life: number of the node's starts so far; written by the launcher.
    run: the same for all starts of all nodes of one launch of a program.
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
    """What the node is busy with or waits for, or the error that ended it."""
    length = min(self._numbers[_LENGTH], len(self._text))
    return bytes(self._text[:length]).decode(errors='replace')

  def read(self) -> bytes:
    """The whole state, for `write` on another host."""
    return bytes(self._all)

  def write(self, shown: bytes) -> None:
    self._all[:] = shown

  def clear(self) -> None:
    """Resets the slot before the node is started again."""
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
    self._numbers[_LENGTH] = 0  # a concurrent reader gets an empty text
    self._text[: len(encoded)] = encoded
    self._numbers[_LENGTH] = len(encoded)
    if limit_s is not None:
      self._limit[0] = limit_s


class Board:
  """The slots of a program's nodes: a file in its scratch directory."""

  def __init__(self, directory: pathlib.Path, num_nodes: int):
    """Makes the file; raises OSError if the disk is full."""
    path = directory / FILE
    # Writes zeros instead of truncating to the size: on a full disk, the first
    # beat into a sparse file would kill its process.
    path.write_bytes(bytes(_BYTES * num_nodes))
    self.slots = slots(path)


def slots(path: pathlib.Path) -> list[Slot]:
  """Maps the slots of a board's file; all share one descriptor."""
  with path.open('r+b') as file:
    memory = memoryview(mmap.mmap(file.fileno(), 0))
  run = path.parent.name
  return [
    Slot(memory[start : start + _BYTES], run)
    for start in range(0, len(memory), _BYTES)
  ]


def use(slot: Slot | None) -> None:
  """Makes this thread the loop of the node with this slot."""
  _here.slot = slot
  _here.progress = -_PROGRESS_S  # when `progress` beat last


def here() -> Slot | None:
  """The slot of this thread's node; None if this thread is no node's loop."""
  return getattr(_here, 'slot', None)


def life() -> tuple[str, int]:
  """Identifies this start of the node: the run, and a number that rises in it.

  In a thread that is no node's loop, a random run and 0.
  """
  slot = here()
  if slot is None:
    return os.urandom(8).hex(), 0
  return slot.run, slot.life


def beat() -> None:
  """Counts a heartbeat of this thread's node."""
  slot = getattr(_here, 'slot', None)
  if slot is not None:
    slot.add(_BEATS)


def progress() -> None:
  """Reports that a slow operation gets on, so that it may take longer.

  Beats only now and then: a node that is busy, and silent for a while, is an
  excuse for a run in which nothing moves (engines/watch.py).
  """
  now = time.monotonic()
  if now - getattr(_here, 'progress', -_PROGRESS_S) >= _PROGRESS_S:
    _here.progress = now
    beat()


def worked(moved: bool = False) -> None:
  """Counts work for the run; `moved` if it was steps or updates."""
  slot = here()
  if slot is not None:
    slot.add(_WORK)
    slot.add(_BEATS)
    if moved:
      slot.add(_MOVED)


def waits(what: str) -> None:
  """Reports that the node waits for `what`; repeat it every few seconds."""
  slot = here()
  if slot is not None:
    slot.add(_BEATS)
    slot.waits(what)


def done(error: str = '') -> None:
  """Reports that the node's code has returned, or died of `error`."""
  slot = here()
  if slot is None:
    return
  if error:
    slot.say(error[-_BYTES // 2 :], -1.0)
  else:
    slot.add(_DONE)


class busy:
  """Allows the node `limit_s` seconds without a heartbeat, for `what`.

  with pulse.busy('a checkpoint'): ...
  """

  def __init__(self, what: str, limit_s: float = LONG_S):
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
  """Turns an OSError, such as a full disk, into a warning about `what`."""
  try:
    yield
  except OSError as e:
    _logger.warning('%s was not written; going on without: %s', what, e)
    waits(f'{what} was not written: {e}')


class Stop:
  """A node's stop event that counts a heartbeat whenever it is checked."""

  def __init__(self, event: Any):
    self._event = event

  def is_set(self) -> bool:
    beat()
    return self._event.is_set()

  def wait(self, timeout: float | None = None) -> bool:
    """As threading.Event.wait; an idle node counts as working."""
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
  """Returns the node's stop event; checking it counts a heartbeat.

  `given` is set when the program is stopped; None uses Launchpad's event.
  """
  if given is None:
    import launchpad as lp  # pylint: disable=g-import-not-at-top

    given = lp.stop_event()
  if here() is None:
    return given
  beat()
  return Stop(given)
