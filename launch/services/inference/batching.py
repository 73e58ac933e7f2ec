"""Which requests go into one forward pass, and when.

A pure state machine; the caller gives the time. The rules are explained in
docs/topologies/central_inference.md, "One step".
"""

from __future__ import annotations

# In units of the longest wait: who was silent for longer is not waited for.
_SILENT_WAITS = 10.0


def half(num_actors: int, num_envs: int) -> int:
  """Rows of half of the actors.

  While they are answered, the other half steps its environments. Otherwise
  the server and the actors would take turns at being idle.
  """
  return -(-num_actors // 2) * num_envs


class Batcher:
  """Collects requests until a batch is worth its forward pass.

  That is when `enough` rows are waiting, when everybody who may still ask has
  asked, or when the oldest has waited for `max_wait_s`. Actors that were silent
  for ten times that (they wait for replay, or are dead) are not waited for.
  """

  def __init__(
    self,
    max_wait_s: float,
    enough: int | None = None,
    max_rows: int | None = None,
  ):
    """Makes one that waits for nobody.

    Args:
      max_wait_s: longest wait of a request for others.
      enough: rows that are; None has no such number.
      max_rows: of a batch, at most; None takes all that wait.
    """
    self._max_wait_s = max_wait_s
    self._enough = enough
    self._max_rows = max_rows
    self._rows = 0
    self._oldest = 0.0
    self._pending: dict[int, int] = {}  # in order of arrival, to rows
    self._heard: dict[int, float] = {}

  def __len__(self) -> int:
    """Requests that wait."""
    return len(self._pending)

  def add(self, actor: int, rows: int, now: float) -> None:
    """Somebody asks for `rows` actions; he has no other request here."""
    if not self._pending:
      self._oldest = now
    self._pending[actor] = rows
    self._rows += rows
    self._heard[actor] = now

  def drop(self, actor: int) -> None:
    """Somebody is gone, with his request if there was one."""
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
    """Seconds after which a batch is due whoever comes; None if none waits."""
    if not self._pending:
      return None
    return max(0.0, self._oldest + self._max_wait_s - now)

  def take(self, now: float) -> list[int]:
    """The next batch, oldest first: at least one request, `max_rows` at most.

    What is left begins to wait anew.
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
