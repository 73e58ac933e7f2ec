"""Samples for the learner, mixed from the table of each shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import logging
import queue
import time
from typing import Any, NamedTuple
import weakref

import numpy as np
import reverb
import tensorflow as tf

from murmuration.replay import readers
from murmuration.replay import table_checks

# Seconds between a waiting sampler's calls of `should_stop`.
_LOOK_AROUND_S = 0.5
# Seconds of silence after which a shard is asked whether it is there.
_PATIENCE_S = 2.0
# A reader that is silent for this long is stuck, if its table would give
# samples. Restarting one that is only slow would lose what it has read.
_STUCK_S = 30.0
# Items that each worker requests ahead of a batch, in each shard; fewer cost a
# little more CPU (readers.py). Rate limiters count them as samples.
MAX_IN_FLIGHT = 1024

_logger = logging.getLogger(__name__)


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


def table_size(sample: Sample) -> int:
  """Items in the shards of a sample, by the newest count of each shard."""
  # The first of each shard, counted from the end.
  _, last = np.unique(sample.shards[::-1], return_index=True)
  return int(sample.table_sizes[::-1][last].sum())


class ShardedSampler:
  """An endless iterator over samples that are mixed evenly from shards.

  A shard that does not answer is left out until it gives samples again; the log
  says so once for each change. A shard that answers but has no samples is
  waited for. `next` raises StopIteration if it has to wait and `should_stop()`
  is true. A limiter that makes it wait costs no item, so it can also read
  queues.
  """

  def __init__(
    self,
    addresses: Sequence[str],
    table: str,
    batch_size: int,
    *,
    updates: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    max_in_flight: int = MAX_IN_FLIGHT,
    connect_timeout_s: float = 60.0,
    say: Callable[[str], None] = lambda text: None,
    **dataset_options: Any,
  ):
    """Makes a sampler and starts to read ahead.

    Args:
      addresses: Reverb server of each shard.
      batch_size: items of one update, B.
      updates: number of updates in one sample, U.
      should_stop: called while there is nothing to return.
      max_in_flight: items of each shard that each of `num_workers` requests
        ahead, besides the sample that is read while the caller uses another.
      connect_timeout_s: how long to wait for a shard that was never there, and
        for any shard if all are away.
      say: called from time to time with what a long wait is for.
      **dataset_options: of `readers.make_dataset`.

    Raises:
      ValueError: batch_size is less than the number of shards.
    """
    if batch_size < len(addresses):
      raise ValueError(
        f'batch_size={batch_size} is less than the {len(addresses)} shards, '
        'of which each gives a part of every batch. Raise batch_size or make '
        'fewer shards.'
      )
    self._table = table
    self._batch_size = batch_size
    self._updates = updates
    self._should_stop = should_stop
    self._connect_timeout_s = connect_timeout_s
    self._say = say
    self._turn = 0
    self._streams = [
      Stream(
        index,
        address,
        functools.partial(
          readers.make_dataset,
          address,
          table,
          # Rounded up: the surplus is kept for the next sample.
          -(-updates * batch_size // len(addresses)),
          max_in_flight=max_in_flight,
          **dataset_options,
        ),
      )
      for index, address in enumerate(addresses)
    ]
    # Also runs at interpreter exit, before TensorFlow is unloaded.
    self.close = weakref.finalize(self, _close, self._streams)

  @property
  def living(self) -> list[int]:
    """Indices of the shards that are not left out."""
    return [stream.index for stream in self._streams if stream.living]

  def __iter__(self) -> ShardedSampler:
    return self

  def __next__(self) -> Sample:
    """The next sample; blocks until there is one.

    Raises:
      StopIteration: should_stop() is true and no sample is available.
      ConnectionError: no shard has answered for connect_timeout_s.
      ValueError: see `readers.make_dataset`.
    """
    nobody_since: float | None = None
    while True:
      for stream in self._streams:
        if not stream.living:
          if stream.poll():
            self._set_living(stream, True)
          elif stream.silent_s >= _STUCK_S:
            self._answers(stream)
      living = [stream for stream in self._streams if stream.living]
      if living:
        nobody_since = None
        places = self._places(len(living))
        hungry = [
          stream
          for stream, place in zip(living, places)
          if stream.num_held < len(place) and not stream.poll()
        ]
        if hungry and not hungry[0].poll(_LOOK_AROUND_S):
          if self._should_stop():
            raise StopIteration
          self._look_after(hungry[0])
        elif all(s.num_held >= len(p) for s, p in zip(living, places)):
          return self._mix(living, places)
        continue
      if self._should_stop():
        raise StopIteration
      nobody_since = nobody_since or time.monotonic()
      # Asking one that is away takes a second.
      if any(self._should_stop() or self._answers(s) for s in self._streams):
        nobody_since = None
      elif time.monotonic() - nobody_since >= self._connect_timeout_s:
        raise self._nobody()
      time.sleep(0.1)

  def _places(self, num_shards: int) -> list[Any]:
    turn = self._turn % num_shards
    return places(num_shards, self._updates, self._batch_size, turn)

  def _mix(self, living: list[Stream], where: list[Any]) -> Sample:
    parts = [
      _as_sample(stream.take(len(place)), stream.index, len(living))
      for stream, place in zip(living, where)
    ]
    self._turn += self._updates * (self._batch_size % len(living))
    if len(parts) == 1:
      return parts[0]
    return _scatter(parts, where, self._updates * self._batch_size)

  def _look_after(self, stream: Stream) -> None:
    """Leaves out a silent shard that is away."""
    patience_s = _PATIENCE_S if stream.seen else self._connect_timeout_s
    silent_s = stream.silent_s
    if silent_s < min(_PATIENCE_S, patience_s):
      return
    if not self._answers(stream) and silent_s >= patience_s:
      self._set_living(stream, False)
      if not self.living and not stream.seen:
        raise self._nobody()

  def _answers(self, stream: Stream) -> bool:
    """Whether a silent shard answers. Restarts its reader if that is stuck."""
    stuck = stream.silent_s >= _STUCK_S
    info = table_checks.now(reverb.Client(stream.address), self._table)
    why = table_checks.why(self._table, stream.address, info)
    self._say(why)
    if info is not None:
      if not stream.said_waiting:
        stream.said_waiting = True
        _logger.info('%s', why)
      if not table_checks.lets_through(info):
        stream.silent_since = time.monotonic()  # its limiter is the reason
        return True
    elif not stream.living and stream.said_waiting:
      stuck = True  # it came back and went away again
    if stuck and (info is not None or not stream.living):
      # The reader waits for a server that is gone, and would do so forever.
      stream.restart()
    return info is not None

  def _set_living(self, stream: Stream, living: bool) -> None:
    """Leaves a shard out, or takes it back."""
    stream.living = living
    if not living:
      stream.drop()
    _logger.warning(
      'Replay shard %d at %s %s: %d of %d shards go on.',
      stream.index,
      stream.address,
      'gives samples again' if living else 'does not answer and is left out',
      len(self.living),
      len(self._streams),
    )

  def _nobody(self) -> ConnectionError:
    addresses = ', '.join(stream.address for stream in self._streams)
    return ConnectionError(
      f'No Reverb server at {addresses} (table {self._table!r}) has answered '
      f'for {self._connect_timeout_s:g} s. Look into the logs of the replay '
      'nodes.'
    )


def _close(streams: list[Stream]) -> None:
  for stream in streams:
    stream.close()


class Stream:
  """Batches of one shard.

  Attributes:
    living: False if the shard is left out.
    seen: whether the shard has ever given a batch.
    said_waiting: whether the log has the reason of its silence.
    silent_since: time.monotonic() of the last batch or restart, or of when the
      cause of the silence (a limiter, or no server) was last known.
  """

  def __init__(
    self, index: int, address: str, make: Callable[[], tf.data.Dataset]
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

  @property
  def silent_s(self) -> float:
    return time.monotonic() - self.silent_since

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
    if isinstance(result, Exception):
      self._reader = None
      if not readers.is_lost(result):
        raise result
      if not self.living:
        self.silent_since = time.monotonic()
      return False
    reader.slots.release()
    self._held.append(result)
    self.seen, self.said_waiting = True, False
    self.silent_since = time.monotonic()
    return True

  def take(self, num: int) -> reverb.ReplaySample:
    """The next `num` items, which must be held."""
    batch = self._held[0]
    if len(batch.info.key) == num:
      return self._held.pop(0)
    if len(self._held) > 1:
      batch = tf.nest.map_structure(lambda *x: tf.concat(x, 0), *self._held)
    rest = tf.nest.map_structure(lambda x: x[num:], batch)
    self._held = [rest] if len(rest.info.key) else []
    return tf.nest.map_structure(lambda x: x[:num], batch)

  def drop(self) -> None:
    """Drops what is held and looks for the server anew."""
    self._held.clear()
    self.restart()

  def restart(self) -> None:
    """Replaces the reader without waiting for its end."""
    self.close(0.0)
    self._reader = self._start()
    self.said_waiting = False
    self.silent_since = time.monotonic()

  def close(self, timeout_s: float = 1.0) -> None:
    if self._reader is not None:
      self._reader.close(timeout_s)
      self._reader = None


# How batches of shards are mixed.


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


def _as_sample(batch: reverb.ReplaySample, shard: int, mixed: int) -> Sample:
  """Converts a batch of one shard, of `mixed` that give samples."""
  info = batch.info
  keys = info.key.numpy()
  return Sample(
    data=batch.data,
    keys=keys,
    # Divides in float64: in a table of millions, probabilities are small.
    probabilities=(info.probability.numpy() / mixed).astype(np.float32),
    table_sizes=info.table_size.numpy(),
    shards=np.full(keys.shape, shard, np.int32),
    times_sampled=info.times_sampled.numpy(),
  )


def _scatter(
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
