"""Checks and repairs priorities, and writes them back to their shards.

Microseconds per key for writing 2048 priorities, in the server's process and
over gRPC from another one: `Client.mutate_priorities` 0.86 and 0.67,
`TFClient.update_priorities` 0.57 and 0.55, Reverb's binding below the former
0.51 and 0.53, and the same in four calls 0.74 and 0.80. Each shard therefore
gets one call of the binding per batch. The call waits forever while its server
is away, so a thread makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
import threading
import time
from typing import Any

import numpy as np
import reverb

from murmuration.replay import table_checks

# Limit of batches that wait to be written, for each shard.
MAX_WAITING = 16

# Reverb's sampler keeps sums of p^alpha in doubles, and recomputes all of them
# once one is off by 1e-4; at 1e12 rounding alone causes that. 16 calls that
# change and draw 256 of 20,000 items did so 0 times with priorities of 1e8, 140
# times with 1e12, and 3,319 times (4.6 s instead of 0.2 s) with 1e30. At 1e6,
# even a table of 100,000 items of the largest priority is far from it.
LARGEST = 1e6

_logger = logging.getLogger(__name__)


def repair(priorities: np.ndarray) -> tuple[np.ndarray, int]:
  """Replaces non-finite priorities by the largest finite one, or 1 if none is.

  Priorities above LARGEST become LARGEST.

  Returns:
    The priorities, a new array, float [N], and the number of those that were
    not finite.
  """
  finite = np.isfinite(priorities)
  if not finite.all():
    largest = np.max(priorities, where=finite, initial=-np.inf)
    priorities = np.where(finite, priorities, largest if finite.any() else 1.0)
  return np.minimum(priorities, LARGEST), int(np.sum(~finite))


def check(priorities: np.ndarray) -> None:
  """Raises ValueError if a priority is negative: Reverb cannot use it."""
  # NaN is not less than 0; `repair` replaces it.
  negative = np.flatnonzero(np.less(priorities, 0))
  if negative.size:
    raise ValueError(
      f'{negative.size} of {np.size(priorities)} priorities are negative, the '
      f'first {np.ravel(priorities)[negative[0]]} at index {negative[0]}. A '
      'priority must be at least 0: pass the absolute temporal difference, '
      'plus a small number so that the item is sampled again.'
    )


def of_items(priorities: np.ndarray, size: int, exponent: float) -> np.ndarray:
  """Priorities of items that hold `size` transitions each.

  This is the power mean: p^exponent of an item is the mean over its
  transitions. On average, each is then sampled as often as if it were an item.

  Args:
    priorities: of transitions, item after item, at least 0, float [M].
    size: transitions per item; divides M.
    exponent: of the table; 0 samples uniformly whatever this returns.

  Returns:
    [M / size]; NaN if one of the item's priorities is.
  """
  if size == 1:
    return priorities
  by_item = np.reshape(priorities, (-1, size))
  if not exponent:
    return by_item.mean(axis=1)
  return (by_item**exponent).mean(axis=1) ** (1.0 / exponent)


class PriorityWriter:
  """Sends priorities to the shards without ever blocking the learner.

  Each shard has a thread and a short queue of batches. If a shard is slow or
  away, the oldest batch is dropped: its items keep their old priorities.

  Attributes:
    dropped: priorities given up.
  """

  def __init__(self, clients: Sequence[reverb.Client], table: str):
    """Makes a writer; does not contact the servers yet.

    `clients` are those of the shards, in the order of `Sample.shards`; each
    shard has a table of this name.
    """
    if not clients:
      raise ValueError('clients is empty: pass the client of each shard.')
    self._said = False
    self._table = table
    self._shards = [_Shard(client, table) for client in clients]

  @property
  def dropped(self) -> int:
    return sum(shard.dropped for shard in self._shards)

  def update(self, sample: Any, priorities: np.ndarray) -> None:
    """Queues new priorities, float [N], for the items of a `sampler.Sample`.

    Raises:
      ValueError: a priority is negative, the number of priorities is not that
        of the keys, or an earlier update found no such table.
    """
    priorities = np.asarray(priorities, np.float64)
    if priorities.shape != np.shape(sample.keys):
      raise ValueError(
        f'priorities have shape {priorities.shape}, but the sample has '
        f'{np.shape(sample.keys)} keys. Pass one priority for each item.'
      )
    check(priorities)
    priorities, repaired = repair(priorities)
    if repaired and not self._said:
      self._said = True
      _logger.warning(
        '%d of %d new priorities for table %r are not finite: each becomes '
        'the largest finite one of its batch. The likely cause: TD errors '
        'overflow, as parameters or rewards are too large. Lower the learning '
        'rate, or scale the rewards. Said once.',
        repaired,
        len(priorities),
        self._table,
      )
    if len(self._shards) == 1:
      self._shards[0].put(sample.keys, priorities)
      return
    for index, shard in enumerate(self._shards):
      own = sample.shards == index
      if own.any():
        shard.put(sample.keys[own], priorities[own])

  def flush(self, timeout_s: float = 10.0) -> bool:
    """Waits until all batches are written; False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    return all(shard.flush(deadline) for shard in self._shards)

  def close(self) -> None:
    """Ends the threads; what is not written is lost, uncounted. See `flush`."""
    for shard in self._shards:
      shard.close()


class _Shard:
  """Thread and queue of one shard."""

  def __init__(self, client: reverb.Client, table: str):
    self.dropped = 0
    self._client = client
    self._table = table
    self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
    self._changed = threading.Condition()
    self._busy = False
    self._closed = False
    self._away = False
    self._error: ValueError | None = None
    # A daemon thread, because nothing can end it while its server is away.
    self._thread = threading.Thread(
      target=self._run, name='replay-priorities', daemon=True
    )
    self._thread.start()

  def put(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    with self._changed:
      if self._error is not None:
        raise self._error
      if self._closed:
        raise ValueError('This PriorityWriter is closed. Make another one.')
      self._waiting.append((keys, priorities))
      if len(self._waiting) > MAX_WAITING:
        self._drop(len(self._waiting.pop(0)[0]), 'is slow or away')
      self._changed.notify_all()

  def flush(self, deadline: float) -> bool:
    with self._changed:
      return self._changed.wait_for(
        lambda: not (self._waiting or self._busy),
        max(0.0, deadline - time.monotonic()),
      )

  def close(self) -> None:
    with self._changed:
      self._closed = True
      self._waiting.clear()
      self._changed.notify_all()
    self._thread.join(timeout=1.0)

  def _run(self) -> None:
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._waiting or self._closed)
        if self._closed:
          return
        keys, priorities = self._waiting.pop(0)
        self._busy = True
      try:
        self._client._client.MutatePriorities(
          self._table, list(zip(keys.tolist(), priorities.tolist())), []
        )
        reason = None
      except Exception as e:
        reason = str(e)
      with self._changed:
        self._busy = False
        if reason is None:
          # One that is only slow is said once, not after each batch.
          self._away = self._away and bool(self._waiting)
        elif not self._closed:
          self._drop(len(keys), f'failed ({reason})')
        self._changed.notify_all()
      if reason is not None:
        self._look()

  def _drop(self, num: int, why: str) -> None:
    self.dropped += num
    if not self._away:
      self._away = True
      _logger.warning(
        'Priorities for table %r at %s are dropped: the server %s. Its items '
        'keep the priorities they have.',
        self._table,
        self._client.server_address,
        why,
      )

  def _look(self) -> None:
    """After a failure, keeps the error if the table does not exist."""
    try:
      tables = table_checks.tables(self._client)
      table_checks.named(self._client, tables, self._table)
    except ConnectionError:
      return  # The server is away: the next call waits for it.
    except ValueError as e:
      self._error = e
