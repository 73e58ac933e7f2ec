"""Reads batches from Reverb: a tf.data dataset, and a sampler that outlives it.

A sample costs per item and per column, so items are one packed column. Measured
here for batches of 512 float32 [16, 11] items from a server in the same process
(address localhost:port: no gRPC): 7 us of CPU per item with one worker and a
plain tf.data pipeline, 10 us with two workers.
"""

from collections.abc import Callable
import functools
import logging
import queue
import threading
import time
from typing import Any
import weakref

import reverb
import tensorflow as tf

# What a rate limiter may make a sampler wait before it looks around, in ms.
RATE_LIMITER_TIMEOUT_MS = 5000
# How often a waiting sampler asks whether to stop, in seconds.
_LOOK_AROUND_S = 0.5
# Errors of a server that went away; any other is the caller's.
_LOST = (
  ConnectionError,
  tf.errors.UnavailableError,
  tf.errors.CancelledError,
  tf.errors.DeadlineExceededError,
)

_logger = logging.getLogger(__name__)


def make_dataset(
  server_address: str,
  table: str,
  batch_size: int,
  *,
  max_in_flight: int | None = None,
  num_workers: int = 1,
  rate_limiter_timeout_ms: int = RATE_LIMITER_TIMEOUT_MS,
  prefetch: int = 0,
  signature: Any = None,
  connect_timeout_s: int = 10,
) -> tf.data.Dataset:
  """A dataset of `reverb.ReplaySample` batches.

  Its iterator waits for ever for a server that went away, also where a stop was
  asked for: nodes use `Sampler`.

  `sample.data` has the structure of the table's items with a leading [B];
  `sample.info.key` uint64 [B] (for priority updates), `.probability` float64
  [B], `.table_size` int64 [B], `.priority` float64 [B], `.times_sampled`.

  Args:
    server_address: of the Reverb server; `localhost:PORT` in its own process
      samples without gRPC.
    table: name of the table.
    batch_size: items in a batch, B.
    max_in_flight: items requested ahead; default twice the batch. They count
      as samples for a rate limiter.
    num_workers: threads that sample; exactly 1 for a queue.
    rate_limiter_timeout_ms: the dataset ends when its limiter makes it wait
      longer; -1: never. At the end Reverb drops items that it has fetched but
      not handed out, so a queue needs -1.
    prefetch: batches made ahead by tf.data.
    signature: (nested) tf.TensorSpec of an item; asked of the server if None.
    connect_timeout_s: how long to wait for the server's signature.

  Raises:
    ValueError: a number out of range, no such table or no signature.
    ConnectionError: the server does not answer.
  """
  if batch_size < 1:
    raise ValueError(f'batch_size={batch_size} must be at least 1 item.')
  if signature is None:
    signature = _signature(server_address, table, connect_timeout_s)
  dataset = reverb.TrajectoryDataset(
    server_address=server_address,
    table=table,
    dtypes=tf.nest.map_structure(lambda spec: spec.dtype, signature),
    shapes=tf.nest.map_structure(lambda spec: spec.shape, signature),
    max_in_flight_samples_per_worker=max_in_flight or 2 * batch_size,
    num_workers_per_iterator=num_workers,
    rate_limiter_timeout_ms=rate_limiter_timeout_ms,
  )
  dataset = dataset.batch(batch_size, drop_remainder=True)
  if prefetch:
    dataset = dataset.prefetch(prefetch)
  # Nothing in this pipeline gains from more threads or from rewriting.
  options = tf.data.Options()
  options.threading.private_threadpool_size = 1
  options.threading.max_intra_op_parallelism = 1
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  return dataset.with_options(options)


def _signature(server_address: str, table: str, timeout_s: int) -> Any:
  try:
    info = reverb.Client(server_address).server_info(timeout=timeout_s)
  except (RuntimeError, reverb.errors.DeadlineExceededError) as e:
    raise ConnectionError(
      f'The Reverb server at {server_address} did not answer within '
      f'{timeout_s} s. Start it first, or correct the address.'
    ) from e
  if table not in info:
    raise ValueError(
      f'The Reverb server at {server_address} has no table {table!r}, only '
      f'{", ".join(sorted(info)) or "none"}. Sample from one of these.'
    )
  if info[table].signature is None:
    raise ValueError(
      f'Table {table!r} at {server_address} has no signature. Give the table '
      'one, or pass signature=.'
    )
  return info[table].signature


class _Reader:
  """A thread that reads batches; it alone waits inside Reverb.

  Reverb's workers try a lost server for ever, and nothing ends that wait: so a
  caller that must be able to stop cannot wait there itself.
  """

  STARVED = object()

  def __init__(self, make: Callable[[], tf.data.Dataset], batches_ahead: int):
    self.results: queue.SimpleQueue = queue.SimpleQueue()
    self.slots = threading.Semaphore(batches_ahead)
    self._make = make
    self._closed = False
    # A daemon: if it is stuck, it must not keep the process.
    self._thread = threading.Thread(
      target=self._run, name='replay-reader', daemon=True
    )
    self._thread.start()

  def _run(self) -> None:
    try:
      dataset = self._make()
      while not self._closed:
        iterator = iter(dataset)
        while True:
          self.slots.acquire()
          if self._closed:
            return
          batch = next(iterator, self.STARVED)
          self.results.put(batch)
          if batch is self.STARVED:
            self.slots.release()
            break
    except Exception as e:  # Raised again by the caller of `next`.
      self.results.put(e)

  def close(self) -> None:
    """Ends the thread, unless it is stuck."""
    self._closed = True
    self.slots.release()
    self._thread.join(timeout=1.0)


class Sampler:
  """An endless iterator over batches, through starved tables and restarts.

  A dataset ends when its rate limiter makes it wait too long, and hangs when
  its server goes away. `next(sampler)` says so once in the log and goes on. It
  raises StopIteration, within a second, when `should_stop()` says so.
  """

  def __init__(
    self,
    server_address: str,
    table: str,
    batch_size: int,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    exactly_once: bool = False,
    batches_ahead: int = 1,
    rate_limiter_timeout_ms: int = RATE_LIMITER_TIMEOUT_MS,
    connect_timeout_s: float = 60.0,
    **dataset_options: Any,
  ):
    """Makes a sampler; the server is first asked at the first `next`.

    Args:
      server_address: of the Reverb server.
      table: name of the table.
      batch_size: items in a batch.
      should_stop: asked while there is nothing to return.
      exactly_once: lose no item (a queue): replaces the rate limiter timeout,
        at which Reverb drops what it has fetched, by -1.
      batches_ahead: batches read while the caller works on another.
      rate_limiter_timeout_ms: see `make_dataset`.
      connect_timeout_s: how long an unreachable server is tried.
      **dataset_options: of `make_dataset`.
    """
    if batches_ahead < 1:
      raise ValueError(f'batches_ahead={batches_ahead} must be at least 1.')
    self._address = server_address
    self._table = table
    self._batch_size = batch_size
    self._should_stop = should_stop
    self._batches_ahead = batches_ahead
    self._connect_timeout_s = connect_timeout_s
    # A reader that is silent for longer is stuck on a server that is gone; or
    # its table starves, where no timeout tells.
    self._restarts = not exactly_once and rate_limiter_timeout_ms >= 0
    if not self._restarts:
      rate_limiter_timeout_ms = -1
    self._patience_s = (
      2.0
      + (rate_limiter_timeout_ms if self._restarts else RATE_LIMITER_TIMEOUT_MS)
      / 1000
    )
    self._make = functools.partial(
      make_dataset,
      server_address,
      table,
      batch_size,
      rate_limiter_timeout_ms=rate_limiter_timeout_ms,
      **dataset_options,
    )
    self._reader: _Reader | None = None
    self._close_reader: Callable[[], Any] = lambda: None
    self._kept: Any = None
    self._said_waiting = False

  def __iter__(self) -> 'Sampler':
    return self

  def __next__(self) -> reverb.ReplaySample:
    """The next batch; blocks until there is one.

    Raises:
      StopIteration: should_stop() is true and no batch is there.
      ConnectionError: the server has been away for connect_timeout_s.
      ValueError: see `make_dataset`.
    """
    silent_since = time.monotonic()
    away_since: float | None = None
    while True:
      reader = self._reader or self._start()
      try:
        result = reader.results.get(timeout=_LOOK_AROUND_S)
      except queue.Empty:
        result = None
      if isinstance(result, reverb.ReplaySample):
        reader.slots.release()
        self._said_waiting = False
        return result
      if self._should_stop():
        raise StopIteration
      elif result is _Reader.STARVED:
        silent_since = time.monotonic()
        self._say_waiting()
        continue
      now = time.monotonic()
      if result is None and now - silent_since < self._patience_s:
        continue
      silent_since = now
      if result is not None:
        self.close()
        if not isinstance(result, _LOST):
          raise result
      self._say_waiting()
      if _table_info(self._address, self._table) is not None:
        away_since = None
        if self._restarts:
          self.close()
        continue
      away_since = away_since or now
      if now - away_since >= self._connect_timeout_s:
        raise ConnectionError(
          f'The Reverb server at {self._address} (table {self._table!r}) has '
          f'been away for {self._connect_timeout_s:g} s. Look into the log of '
          'the replay node.'
        )

  def close(self) -> None:
    """Ends the reading thread. A later `next` starts another."""
    self._close_reader()
    self._reader = None

  def _start(self) -> _Reader:
    self._reader = _Reader(self._make, self._batches_ahead)
    # Also runs at the exit of the interpreter, before TensorFlow goes.
    self._close_reader = weakref.finalize(self, self._reader.close)
    return self._reader

  def _say_waiting(self) -> None:
    if self._said_waiting:
      return
    self._said_waiting = True
    info = _table_info(self._address, self._table)
    if info is None:
      _logger.warning(
        'Waiting for table %r: the Reverb server at %s does not answer.',
        self._table,
        self._address,
      )
      return
    limiter = info.rate_limiter_info
    _logger.info(
      'Waiting for table %r at %s: it holds %d items and gives samples from %d '
      'on, at %g samples per insert.',
      self._table,
      self._address,
      info.current_size,
      limiter.min_size_to_sample,
      limiter.samples_per_insert,
    )


def _table_info(server_address: str, table: str) -> Any:
  """What the server says of the table; None if it does not answer."""
  try:
    info = reverb.Client(server_address).server_info(timeout=1)
  except (RuntimeError, reverb.errors.DeadlineExceededError):
    return None
  return info.get(table)
