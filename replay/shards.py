"""Streams of samples from several replay shards, and how they are mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import queue
import time
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf

from murmuration.replay import readers


class Sample(NamedTuple):
  """N = updates * batch_size items, update after update.

  Attributes:
    data: items of the table, a (nested) tf.Tensor [N, ...].
    keys: keys of the items in their shard, uint64 [N].
    probabilities: of the items in the mixed stream, float32 [N]: those in their
      shard, divided by the number of shards that give samples.
    table_sizes: items in the shard of each item, int64 [N].
    shards: index of the shard of each item, int32 [N].
    times_sampled: of each item, including this sample, int32 [N].
  """

  data: Any
  keys: np.ndarray
  probabilities: np.ndarray
  table_sizes: np.ndarray
  shards: np.ndarray
  times_sampled: np.ndarray


def as_sample(batch: reverb.ReplaySample, shard: int, mixed: int) -> Sample:
  """Converts a batch of one shard, of `mixed` that give samples."""
  keys = batch.info.key.numpy()
  return Sample(
    data=batch.data,
    keys=keys,
    # Divides in float64: in a table of millions, probabilities are small.
    probabilities=(batch.info.probability.numpy() / mixed).astype(np.float32),
    table_sizes=batch.info.table_size.numpy(),
    shards=np.full(keys.shape, shard, np.int32),
    times_sampled=batch.info.times_sampled.numpy(),
  )


@functools.lru_cache(maxsize=64)
def places(
  num_shards: int, updates: int, batch_size: int, turn: int
) -> list[np.ndarray]:
  """Where each shard's items go in a sample, update after update.

  Every shard has batch_size / num_shards places in each update. The remainder
  rotates over the shards, starting at shard `turn`.

  Returns:
    For each shard its places in [0, updates * batch_size), int64, ascending.
  """
  share, rest = divmod(batch_size, num_shards)
  owners = np.empty((updates, batch_size), np.int64)
  owners[:, : share * num_shards] = np.repeat(np.arange(num_shards), share)
  extra = np.arange(updates * rest).reshape(updates, rest) + turn
  owners[:, share * num_shards :] = extra % num_shards
  flat = owners.ravel()
  return [np.flatnonzero(flat == shard) for shard in range(num_shards)]


def mix(
  parts: Sequence[Sample], where: Sequence[np.ndarray], size: int
) -> Sample:
  """One sample of `size` items, with the items of parts[j] at where[j]."""

  def scatter(*arrays: Any) -> np.ndarray:
    arrays = tuple(np.asarray(array) for array in arrays)
    out = np.empty((size, *arrays[0].shape[1:]), arrays[0].dtype)
    for array, place in zip(arrays, where, strict=True):
      out[place] = array
    return out

  data = tf.nest.map_structure(
    lambda *tensors: tf.convert_to_tensor(scatter(*tensors)),
    *(part.data for part in parts),
  )
  return Sample(data, *(scatter(*field) for field in list(zip(*parts))[1:]))


def table_size(sample: Sample) -> int:
  """Items in the shards of a sample, by the newest count of each shard."""
  # The first of each shard, counted from the end.
  _, last = np.unique(sample.shards[::-1], return_index=True)
  return int(sample.table_sizes[::-1][last].sum())


class Stream:
  """Batches of one shard, and whether it gives any.

  A reader that waits for a lost server may hang even after the server is back;
  `restart` then replaces it.

  Attributes:
    living: False if the shard is left out.
    seen: whether the shard has ever given a batch.
    silent_since: time.monotonic() of the last batch or restart, or of when the
      cause of the silence (a limiter, or no server) was last known.
  """

  def __init__(
    self,
    index: int,
    address: str,
    make: Callable[[], tf.data.Dataset],
  ):
    self.index = index
    self.address = address
    self.living = True
    self.seen = False
    self.said_waiting = False
    self.silent_since = time.monotonic()
    self._held: list[reverb.ReplaySample] = []
    self._start = functools.partial(readers.Reader, make)
    self._reader: readers.Reader | None = self._start()

  @property
  def num_held(self) -> int:
    """Items that can be taken now."""
    return sum(len(batch.info.key) for batch in self._held)

  def poll(self, timeout_s: float = 0.0) -> bool:
    """Waits for a batch; True if one came.

    Raises:
      ValueError: the table does not exist, or has another signature.
      tf.errors.OpError: sampling failed for another reason than a lost server.
    """
    reader = self._reader
    if reader is None:
      reader = self._reader = self._start()
    try:
      result = reader.results.get(timeout=timeout_s)
    except queue.Empty:
      return False
    if isinstance(result, reverb.ReplaySample):
      reader.slots.release()
      self._held.append(result)
      self.seen = True
      self.said_waiting = False
      self.silent_since = time.monotonic()
      return True
    if isinstance(result, Exception):
      self._reader = None
      if not readers.is_lost(result):
        raise result
      if not self.living:
        self.silent_since = time.monotonic()
    return False

  def take(self, num: int) -> reverb.ReplaySample:
    """The next `num` items, which must be held."""
    if len(self._held[0].info.key) == num:
      return self._held.pop(0)
    batch = self._held[0]
    if len(self._held) > 1:
      batch = tf.nest.map_structure(lambda *x: tf.concat(x, 0), *self._held)
    rest = tf.nest.map_structure(lambda x: x[num:], batch)
    self._held = [rest] if len(rest.info.key) else []
    return tf.nest.map_structure(lambda x: x[:num], batch)

  def leave_out(self) -> None:
    """Drops what is held and starts to look for the server."""
    self.living = False
    self._held.clear()
    self.restart()

  def restart(self) -> None:
    """Replaces the reader without waiting for its end."""
    self.close(0.0)
    self._reader = self._start()
    self.silent_since = time.monotonic()

  def close(self, timeout_s: float = 1.0) -> None:
    if self._reader is not None:
      self._reader.close(timeout_s)
      self._reader = None
