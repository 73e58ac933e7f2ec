"""Reads batches from one Reverb table: a tf.data dataset, and its thread.

Reverb's own dataset hangs while its server is away. So a thread reads it, which
can be given up, and sampler.py mixes what the threads of several shards read.

A sample costs per item and per column, so items are one packed column.
With batches of 2048 float32 [13] items of a prioritized table, one worker of a
TrajectoryDataset reads 170,000 to 205,000 items per second in the server's
process (5 to 6 us of CPU each), and 36,000 to 61,000 over gRPC (8 to 16 us). A
second worker helps only over gRPC. With 64, 256 and 1024 items in flight an
item costs 7.4, 7.0 and 5.5 us; more is no further gain.
"""

from __future__ import annotations

from collections.abc import Callable
import queue
import threading
from typing import Any

import reverb
import tensorflow as tf

from murmuration.replay import table_checks
from murmuration.replay import tensors as tensors_lib

_CONNECT_TIMEOUT_S = 10  # for the server's signature


def is_lost(error: Any) -> bool:
  """Whether a result is the error of a server that went away."""
  return isinstance(
    error,
    (
      ConnectionError,
      tf.errors.UnavailableError,
      tf.errors.CancelledError,
      tf.errors.DeadlineExceededError,
    ),
  )


def make_dataset(
  server_address: str,
  table: str,
  batch_size: int,
  *,
  max_in_flight: int | None = None,
  num_workers: int = 1,
  signature: Any = None,
) -> tf.data.Dataset:
  """A dataset of `reverb.ReplaySample` batches.

  `sample.data` has the structure of the table's items with a leading [B];
  `sample.info.key` is uint64 [B] (for priority updates), `.probability` float64
  [B], `.table_size` int64 [B], `.priority` float64 [B], `.times_sampled` [B].

  Args:
    server_address: with `127.0.0.1:PORT` in the server's own process, samples
      do not go through gRPC.
    batch_size: items in a batch, B.
    max_in_flight: items that each worker requests ahead; default twice the
      batch. They count as samples for a rate limiter.
    num_workers: threads that sample; exactly 1 for a queue.
    signature: (nested) tf.TensorSpec of an item, checked against the server's.

  Raises:
    ValueError: a number out of range, no such table, no signature or another.
    ConnectionError: the server does not answer.
  """
  if batch_size < 1:
    raise ValueError(f'batch_size={batch_size} must be at least 1 item.')
  signature = table_checks.signature(
    reverb.Client(server_address), table, signature, _CONNECT_TIMEOUT_S
  )
  # No timeout of the limiter: when it ends the dataset, Reverb drops items that
  # were fetched but not returned. A queue would lose them, and a table that
  # gets few items might never fill a batch.
  dataset = reverb.TrajectoryDataset(
    server_address=server_address,
    table=table,
    dtypes=tf.nest.map_structure(lambda spec: spec.dtype, signature),
    shapes=tf.nest.map_structure(lambda spec: spec.shape, signature),
    max_in_flight_samples_per_worker=max_in_flight or 2 * batch_size,
    num_workers_per_iterator=num_workers,
  )
  dataset = dataset.batch(batch_size, drop_remainder=True)
  # This pipeline gains nothing from more threads or from optimization.
  options = tf.data.Options()
  options.threading.private_threadpool_size = 1
  options.threading.max_intra_op_parallelism = 1
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  return dataset.with_options(options)


class Reader:
  """A thread that reads one batch ahead, and alone waits inside Reverb.

  Reverb's workers retry a lost server forever, so a caller that also has other
  things to check cannot wait there itself. Only a cancellation ends that wait;
  an abandoned thread takes 5% of a core.
  """

  def __init__(self, make: Callable[[], tf.data.Dataset]):
    tensors_lib.stop_leak()
    # Not a SimpleQueue: a signal can make its get(timeout) wait forever.
    self.results: queue.Queue = queue.Queue()
    self.slots = threading.Semaphore(1)  # released when a batch is taken
    self._make = make
    self._closed = False
    from tensorflow.python.eager import cancellation

    self._cancel = cancellation.CancellationManager()
    # A daemon thread, so that the process can exit while it is stuck.
    self._thread = threading.Thread(
      target=self._run, name='replay-reader', daemon=True
    )
    self._thread.start()

  def _run(self) -> None:
    try:
      read = _cancelable(iter(self._make()), self._cancel)
      while True:
        self.slots.acquire()
        if self._closed:
          return
        self.results.put(read())
    except Exception as e:  # The consumer raises it again.
      self.results.put(e)

  def close(self, timeout_s: float = 1.0) -> None:
    """Ends the thread, and waits for it no longer than `timeout_s`."""
    self._closed = True
    self.slots.release()
    self._cancel.start_cancel()
    self._thread.join(timeout=timeout_s)


def _cancelable(
  iterator: Any, cancel: Any
) -> Callable[[], reverb.ReplaySample]:
  """A function that does what `next(iterator)` does, until `cancel` ends it.

  TensorFlow can cancel functions only. A function around `next` would do, but
  costs 0.3 ms a call; the bare operation costs less than `next` itself.
  """
  from tensorflow.python.eager import context
  from tensorflow.python.eager import execute

  spec = iterator.element_spec
  flat = tf.nest.flatten(spec)
  attributes = (
    'output_types',
    [one.dtype.as_datatype_enum for one in flat],
    'output_shapes',
    [one.shape.as_list() for one in flat],
  )

  def read():
    tensors = execute.execute_with_cancellation(
      'IteratorGetNext',
      len(flat),
      [iterator._iterator_resource],
      attributes,
      context.context(),
      cancel,
    )
    return tf.nest.pack_sequence_as(spec, tensors)

  return read
