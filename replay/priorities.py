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
import contextlib
import logging
import queue
import threading
import time
from typing import Any

import numpy as np
import reverb

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


class Repair:
  """Checks and repairs the priorities for a table; warns of it once."""

  def __init__(self, table: str, cause: str):
    self._table = table
    self._cause = cause  # the likely one
    self._said = False

  def __call__(self, priorities: np.ndarray, num: int) -> np.ndarray:
    """The `num` priorities, repaired; ValueError if they are no such."""
    priorities = np.asarray(priorities, np.float64)
    if priorities.shape != (num,):
      raise ValueError(
        f'{num} items of table {self._table!r} got priorities of shape '
        f'{priorities.shape}. Give one for each.'
      )
    check(priorities)
    priorities, repaired = repair(priorities)
    if repaired and not self._said:
      self._said = True
      _logger.warning(
        '%d of %d priorities for table %r are not finite: each becomes the '
        'largest finite one beside it. The likely cause: %s. Said once.',
        repaired,
        num,
        self._table,
        self._cause,
      )
    return priorities


class PriorityWriter:
  """Sends priorities to the shards without ever blocking the learner.

  Each shard has a thread and a short queue of batches: while one shard is away,
  the others get theirs. If a shard is slow or away, the oldest batch is
  dropped: its items keep their old priorities.

  Attributes:
    dropped: priorities given up.
  """

  def __init__(self, clients: Sequence[reverb.Client], table: str):
    """Makes a writer; does not contact the servers yet.

    `clients` are those of the shards, in the order of `Sample.shards`; each
    shard has a table of this name.
    """
    self.dropped = 0
    self._lock = threading.Lock()
    self._table = table
    self._repair = Repair(
      table,
      'TD errors overflow, as parameters or rewards are too large. Lower the '
      'learning rate, or scale the rewards',
    )
    self._clients = list(clients)
    self._queues: list[queue.Queue] = [queue.Queue() for _ in clients]
    self._away = [False] * len(clients)  # where drops were already logged
    self._closed = False
    # Daemon threads, because nothing can end one while its server is away.
    self._threads = [
      threading.Thread(
        target=self._run, args=(i,), name='replay-priorities', daemon=True
      )
      for i in range(len(clients))
    ]
    for thread in self._threads:
      thread.start()

  def update(self, sample: Any, priorities: np.ndarray) -> None:
    """Queues new priorities, float [N], for the items of a `sampler.Sample`.

    Raises:
      ValueError: a priority is negative, or there is not one for each key.
    """
    priorities = self._repair(priorities, len(sample.keys))
    for index, waiting in enumerate(self._queues):
      own = sample.shards == index
      if not own.any():
        continue
      if waiting.qsize() >= MAX_WAITING:
        with contextlib.suppress(queue.Empty):  # its thread was faster
          keys, _ = waiting.get_nowait()
          self._drop(index, len(keys), 'is slow or away')
          waiting.task_done()
      waiting.put((sample.keys[own], priorities[own]))

  def flush(self, timeout_s: float = 10.0) -> bool:
    """Waits until all batches are written; False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    for waiting in self._queues:
      with waiting.all_tasks_done:
        while waiting.unfinished_tasks:
          left_s = deadline - time.monotonic()
          if left_s <= 0:
            return False
          waiting.all_tasks_done.wait(left_s)
    return True

  def close(self) -> None:
    """Ends the threads; what is not written is lost, uncounted. See `flush`."""
    self._closed = True
    for waiting in self._queues:
      waiting.put(((), ()))  # wakes its thread
    for thread in self._threads:
      thread.join(timeout=1.0)

  def _run(self, index: int) -> None:
    waiting, client = self._queues[index], self._clients[index]
    while True:
      keys, priorities = waiting.get()
      if self._closed:
        return
      try:
        client._client.MutatePriorities(
          self._table, list(zip(keys.tolist(), priorities.tolist())), []
        )
        # One that is only slow is said once, not after each batch.
        self._away[index] = self._away[index] and waiting.qsize() > 0
      except Exception as e:  # Reverb's errors have no common class
        if not self._closed:
          self._drop(index, len(keys), f'failed ({e})')
      waiting.task_done()

  def _drop(self, index: int, num: int, why: str) -> None:
    with self._lock:
      self.dropped += num
      if self._away[index]:
        return
      self._away[index] = True
    _logger.warning(
      'Priorities for table %r at %s are dropped: the server %s. Its items '
      'keep the priorities they have.',
      self._table,
      self._clients[index].server_address,
      why,
    )
