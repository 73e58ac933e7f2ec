"""What is said of a table that gives no samples, and readers that end."""

import functools
import os
import queue
import signal
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import readers
from murmuration.replay import table_checks
from murmuration.replay import tables


def test_who_waits_for_whom_is_said_in_words(serve):
  limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 5, error_buffer=12)
  table = tables.uniform('table', 100, 5, None, limiter)
  server = serve(table)
  client = server.localhost_client()
  address = f'localhost:{server.port}'

  def said():
    info = table_checks.now(client, 'table')
    return table_checks.why('table', address, info)

  assert address in said() and 'gives samples from 5 on' in said()
  for _ in range(7):
    client.insert(np.zeros(1, np.float32), {'table': 1.0})
  assert '7 of 100 items' in said() and 'lets both through' in said()
  while table.can_sample(1):
    list(client.sample('table', 1))
  assert 'samples wait for inserts' in said()
  while table.can_insert(1):
    client.insert(np.zeros(1, np.float32), {'table': 1.0})
  assert 'inserts wait for samples' in said()
  server.stop()
  assert 'does not answer' in table_checks.why(
    'table', address, table_checks.now(client, 'table')
  )


@pytest.mark.parametrize('why', ['starves', 'is gone'])
def test_a_reader_that_waits_for_a_table_ends_when_it_is_closed(serve, why):
  # Left behind, readers of servers that died fill a core.
  table = tables.uniform('table', 10, 3, tf.TensorSpec([1], tf.float32))
  server = serve(table)
  address = f'localhost:{server.port}'
  before = set(threading.enumerate())
  reader = readers.Reader(
    functools.partial(readers.make_dataset, address, 'table', 2)
  )
  if why == 'is gone':
    with server.localhost_client().trajectory_writer(1) as writer:
      for _ in range(3):
        writer.append(np.zeros(1, np.float32))
        writer.create_item('table', 1.0, writer.history[-1])
    assert isinstance(reader.results.get(timeout=60), reverb.ReplaySample)
    server.stop()
    for _ in range(20):  # more than was read ahead
      reader.slots.release()
  time.sleep(1.0)  # until it waits inside Reverb
  (thread,) = set(threading.enumerate()) - before
  reader.close(0.0)
  thread.join(60)
  assert not thread.is_alive()


def test_a_signal_does_not_make_a_look_for_a_batch_last(serve):
  table = tables.uniform('table', 10, 3, tf.TensorSpec([1], tf.float32))
  address = f'localhost:{serve(table).port}'
  reader = readers.Reader(
    functools.partial(readers.make_dataset, address, 'table', 2)
  )
  # Its handling lasts longer than the look.
  previous = signal.signal(signal.SIGUSR2, lambda *unused: time.sleep(0.4))
  timers = [
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR2)),
    threading.Timer(30.0, reader.results.put, ('too late',)),
  ]
  try:
    for timer in timers:
      timer.start()
    with pytest.raises(queue.Empty):
      reader.results.get(timeout=0.3)
  finally:
    for timer in timers:
      timer.cancel()
    timers[0].join()
    signal.signal(signal.SIGUSR2, previous)
    reader.close()
