"""Dynamic batching: which requests go into one forward pass, and when.

A pure state machine: callers pass the time. The rules are explained in
docs/topologies/central_inference.md, "One step".
"""

from __future__ import annotations

# An actor that was silent for so many times the longest wait is not waited for.
_SILENT_WAITS = 10.0


def half(num_actors: int, num_envs: int) -> int:
  """Rows (environments) of half of the actors.

  While the server answers one half, the other steps its environments. Otherwise
  the server and the actors would be idle by turns.
  """
  return -(-num_actors // 2) * num_envs


class Batcher:
  """Collects requests until a batch is worth a forward pass.

  A batch is due when `enough` rows are pending, when all active actors have
  sent a request, or when the oldest request has waited for `max_wait_s`. An
  actor that was silent for ten times as long, because it waits for replay or is
  dead, does not count as active.
  """

  def __init__(
    self,
    max_wait_s: float,
    enough: int | None = None,
    max_rows: int | None = None,
  ):
    """`enough` and `max_rows` may be None, for no such limit."""
    self._max_wait_s = max_wait_s
    self._enough = enough
    self._max_rows = max_rows
    self._rows = 0
    self._oldest = 0.0
    self._pending: dict[int, int] = {}  # actor -> rows, in order of arrival
    self._heard: dict[int, float] = {}

  def __len__(self) -> int:
    return len(self._pending)

  def add(self, actor: int, rows: int, now: float) -> None:
    """Adds a request for `rows` actions; its actor has no other one pending."""
    if not self._pending:
      self._oldest = now
    self._pending[actor] = rows
    self._rows += rows
    self._heard[actor] = now

  def drop(self, actor: int) -> None:
    """Removes an actor that is gone, and its request if there is one."""
    self._rows -= self._pending.pop(actor, 0)
    self._heard.pop(actor, None)

  def due(self, now: float) -> bool:
    """Whether `take` should be called."""
    if not self._pending:
      return False
    if self._enough is not None and self._rows >= self._enough:
      return True
    if now - self._oldest >= self._max_wait_s:
      return True
    since = now - _SILENT_WAITS * self._max_wait_s
    return not any(
      heard > since and actor not in self._pending
      for actor, heard in self._heard.items()
    )

  def wait_s(self, now: float) -> float | None:
    """Seconds until a batch is due at the latest; None without requests."""
    if not self._pending:
      return None
    return max(0.0, self._oldest + self._max_wait_s - now)

  def take(self, now: float) -> list[int]:
    """Removes and returns the actors of the next batch, oldest first.

    It has at least one request, and at most `max_rows` rows if it has several.
    The wait of the remaining requests starts again.
    """
    batch: list[int] = []
    rows = 0
    for actor, count in self._pending.items():
      if batch and self._max_rows is not None and rows + count > self._max_rows:
        break
      batch.append(actor)
      rows += count
    for actor in batch:
      self._rows -= self._pending.pop(actor)
    self._oldest = now
    return batch
