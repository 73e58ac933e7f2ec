"""Detects silent and stalled nodes from their heartbeats (pulse.py).

It decides what each sign means and how long it may last; the supervisor acts on
it. Time is the sum of short steps between looks, so that no node counts as
silent because the machine slept or was too busy even for the launcher.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
import time

from murmuration.launch import pulse
from murmuration.launch.engines import restarts
from murmuration.launch.engines import state as state_lib

_LOOK_S = 0.5
_MAX_LOOK_S = 1.0  # the time that one look counts for, at most
_SAY_S = 10.0  # until the first notice; the next one after twice as long
_FRESH_S = 5.0  # without a beat before a busy node excuses a stall
# A node that waits reports it again within this time, however long a try takes.
_UNSAID_S = 20.0


@dataclasses.dataclass
class _Seen:
  """The state of a node at the last look, and for how many seconds."""

  beats: int = 0
  moved: int = 0
  said: int = 0
  silent_s: float = 0.0
  unsaid_s: float = _UNSAID_S
  waiting_s: float = 0.0
  said_of: tuple[bool, int] | None = None  # the notice: silent, and how long


class Watch:
  """Watches the nodes of one program."""

  def __init__(
    self,
    slots: Sequence[pulse.Slot],
    rules: restarts.Rules,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Watches `slots`, those of the nodes in program order."""
    self.rules = rules
    self._slots = slots
    self._clock = clock
    self._seen = [_Seen() for _ in slots]
    self._looked = self._clock()
    self._still_s = 0.0
    self._counts = False  # whether any node has moved or reported a wait

  def started(self, index: int) -> None:
    """Resets the node's slot; to be called before each start of the node."""
    self._slots[index].clear()
    self._seen[index] = _Seen()

  def worked(self, index: int) -> bool:
    """Whether a node did work since its start; True if it never beats."""
    slot = self._slots[index]
    return slot.beats == 0 or slot.work > 0

  def look(self, nodes: Sequence[state_lib.NodeState]) -> list[tuple[int, str]]:
    """Updates the nodes' notices. Returns (index, reason) of silent nodes."""
    now = self._clock()
    if now - self._looked < _LOOK_S:
      return []
    passed_s = min(now - self._looked, _MAX_LOOK_S)
    self._looked = now
    moved = excused = False
    silent = []
    for index, node in enumerate(nodes):
      slot, seen = self._slots[index], self._seen[index]
      if not node.alive:
        node.notice = ''
        continue
      moved |= self._count(slot, seen, passed_s)
      # A node that waits while it is busy is not working, however long its
      # tries take.
      works = _FRESH_S < seen.silent_s < slot.limit_s
      excused |= works and seen.unsaid_s >= _UNSAID_S
      self._notice(slot, seen, node)
      if seen.silent_s >= max(self.rules.silent_s, slot.limit_s):
        silent.append((index, _silence(slot, seen)))
    # The nodes of a user's own program may beat and never count steps.
    self._counts |= moved or any(slot.said for slot in self._slots)
    self._still_s += passed_s
    if moved or excused or not self._counts:
      self._still_s = 0.0
    return silent

  def excuse(self) -> None:
    """Begins a stall anew: others may stand still for the sake of a node."""
    self._still_s = 0.0

  def stalled(self, nodes: Sequence[state_lib.NodeState]) -> str:
    """Why the run is stalled; '' if it is not."""
    if self._still_s < self.rules.stall_s:
      return ''
    notices = [f'{n.name} {n.notice}' for n in nodes if n.notice]
    return f'no step and no update for {int(self._still_s)} s: ' + (
      '; '.join(notices) or 'no node says why; see their logs'
    )

  def _count(self, slot: pulse.Slot, seen: _Seen, passed_s: float) -> bool:
    """Adds the seconds of a look. Returns whether the node moved in it."""
    still = slot.beats and slot.beats == seen.beats
    seen.silent_s = seen.silent_s + passed_s if still else 0.0
    seen.beats = slot.beats
    moved, seen.moved = slot.moved != seen.moved, slot.moved
    unsaid_s = seen.unsaid_s + passed_s
    if moved or not slot.text or unsaid_s >= _UNSAID_S:
      seen.waiting_s = 0.0
    if slot.said == seen.said:
      seen.unsaid_s = unsaid_s
      return moved
    # Counts from the first report of a wait to the newest, as its end is not
    # reported.
    if slot.text and not moved:
      seen.waiting_s += unsaid_s if unsaid_s < _UNSAID_S else passed_s
    seen.said, seen.unsaid_s = slot.said, 0.0
    return moved

  def _notice(
    self, slot: pulse.Slot, seen: _Seen, node: state_lib.NodeState
  ) -> None:
    """Sets a notice when a problem begins, and each time its age doubles."""
    say_s = min(_SAY_S, self.rules.silent_s / 2)
    silent = seen.silent_s >= say_s
    seconds = seen.silent_s if silent else seen.waiting_s
    if seconds < say_s:
      node.notice, seen.said_of = '', None
      return
    said_of = silent, int(math.log2(seconds / say_s))
    if said_of != seen.said_of:
      waiting = f'for {int(seconds)} s now: {slot.text}'
      node.notice = _silence(slot, seen) if silent else waiting
      seen.said_of = said_of


def _silence(slot: pulse.Slot, seen: _Seen) -> str:
  words = f'silent for {int(seen.silent_s)} s'
  if slot.limit_s > 0:
    words += f', busy with {slot.text} (for {slot.limit_s:.0f} s at most)'
  return words
