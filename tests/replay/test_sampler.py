"""Datasets and the sampler on a real Reverb server."""

import logging
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import readers
from murmuration.replay import sampler as sampler_lib
from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([2], tf.float32)


def _write(client, table, values):
  with client.trajectory_writer(1) as writer:
    for value in values:
      writer.append(np.full(2, value, np.float32))
      writer.create_item(table, 1.0, writer.history[-1])


def _address(server):
  return f'localhost:{server.port}'


def test_batches_are_items_of_the_table_with_their_keys(serve):
  server = serve(tables.prioritized('table', 100, 1, SIGNATURE, 1.0))
  client = server.localhost_client()
  _write(client, 'table', range(10))
  dataset = readers.make_dataset(_address(server), 'table', 32)
  sample = next(iter(dataset))
  assert sample.data.shape == (32, 2) and sample.data.dtype == tf.float32
  assert set(sample.data.numpy()[:, 0]) <= set(range(10))
  np.testing.assert_allclose(sample.info.probability, 0.1)
  np.testing.assert_allclose(sample.info.priority, 1.0)
  np.testing.assert_array_equal(sample.info.table_size, 10)

  # Priorities go back to where the key came from.
  key, value = int(sample.info.key[0]), float(sample.data[0, 0])
  client.mutate_priorities('table', {key: 1e6})
  fresh = next(iter(readers.make_dataset(_address(server), 'table', 32)))
  assert np.mean(fresh.data.numpy()[:, 0] == value) > 0.9


def test_uniform_sampling_is_uniform(serve):
  server = serve(tables.uniform('table', 100, 1, SIGNATURE))
  _write(server.localhost_client(), 'table', range(20))
  sampler = sampler_lib.ShardedSampler([_address(server)], 'table', 500)
  values = np.concatenate([next(sampler).data[:, 0] for _ in range(20)])
  counts = np.bincount(values.astype(int), minlength=20)
  # 500 each, standard deviation 22.
  assert counts.shape == (20,) and np.all(np.abs(counts - 500) < 6 * 22)


def test_a_sampler_waits_for_a_starved_table_and_says_so_once(
  serve, caplog, once_said
):
  server = serve(tables.uniform('table', 100, 5, SIGNATURE))
  caplog.set_level(logging.INFO, 'murmuration.replay.sampler')
  said = []
  sampler = sampler_lib.ShardedSampler(
    [_address(server)], 'table', 4, say=said.append
  )
  client = server.localhost_client()
  _write(client, 'table', range(3))
  once_said('gives samples from', _write, client, 'table', range(3, 6))
  batch = next(sampler)
  assert batch.data.shape == (4, 2)
  (message,) = [record.getMessage() for record in caplog.records]
  assert 'gives samples from 5 on' in message
  # As long as it waits; the last time, what was written may just be there.
  assert message in said


@pytest.mark.long
def test_a_queue_that_starves_now_and_then_gives_each_item_once_in_order(serve):
  server = serve(tables.queue('queue', 1000, SIGNATURE))
  sampler = sampler_lib.ShardedSampler(
    [_address(server)],
    'queue',
    4,
  )

  def write():
    client = server.localhost_client()
    # Pieces that do not fit the batch, with pauses between them.
    pieces = np.split(np.arange(400), np.cumsum([3, 1, 9, 2, 1, 15] * 12))
    for i, piece in enumerate(pieces):
      _write(client, 'queue', piece)
      time.sleep(0.01 * (i % 4))

  writer = threading.Thread(target=write)
  writer.start()
  values = np.concatenate([next(sampler).data[:, 0] for _ in range(100)])
  writer.join()
  np.testing.assert_array_equal(values, np.arange(400))


def test_a_sampler_goes_on_after_its_server_came_back_unseen(
  serve, monkeypatch
):
  monkeypatch.setattr(sampler_lib, '_STUCK_S', 3.0)
  server = serve(tables.uniform('table', 100, 1, SIGNATURE))
  port = server.port
  _write(server.localhost_client(), 'table', [1.0])
  sampler = sampler_lib.ShardedSampler([_address(server)], 'table', 4)
  assert np.all(next(sampler).data == 1.0)
  server.stop()

  def restart():
    again = serve(tables.uniform('table', 100, 1, SIGNATURE), port=port)
    _write(again.localhost_client(), 'table', [2.0])

  starter = threading.Timer(0.5, restart)
  starter.start()
  # What was sampled before the stop may still come first.
  deadline = time.monotonic() + 60
  while not np.all(next(sampler).data == 2.0):
    assert time.monotonic() < deadline
  starter.join()


def test_a_sampler_stops_while_its_server_is_away(serve):
  server = serve(tables.uniform('table', 100, 1, SIGNATURE))
  _write(server.localhost_client(), 'table', [1.0])
  stop = threading.Event()
  sampler = sampler_lib.ShardedSampler(
    [_address(server)], 'table', 4, should_stop=stop.is_set
  )
  next(sampler)
  server.stop()
  stopper = threading.Timer(0.3, stop.set)
  stopper.start()
  start = time.monotonic()
  for _ in sampler:
    pass
  assert time.monotonic() - start < 30
  stopper.join()


def test_a_server_that_is_not_there_is_named_with_its_address(monkeypatch):
  monkeypatch.setattr(readers, '_CONNECT_TIMEOUT_S', 1)
  with pytest.raises(ConnectionError, match='localhost:1 did not answer'):
    readers.make_dataset('localhost:1', 'table', 4)
  sampler = sampler_lib.ShardedSampler(
    ['localhost:1'],
    'table',
    4,
    signature=SIGNATURE,
    connect_timeout_s=0.5,
  )
  with pytest.raises(ConnectionError, match=r'localhost:1.*for 0\.5 s'):
    next(sampler)


def test_a_table_that_is_not_there_is_named(serve):
  server = serve(tables.uniform('table', 100, 1, SIGNATURE))
  with pytest.raises(ValueError, match="no table 'tabel' at .*, only table"):
    readers.make_dataset(_address(server), 'tabel', 4)


def test_a_table_without_a_signature_is_refused(serve):
  server = serve(
    reverb.Table.queue(name='bare', max_size=10),
  )
  with pytest.raises(ValueError, match='no signature'):
    readers.make_dataset(_address(server), 'bare', 4)


def test_an_empty_batch_is_refused():
  with pytest.raises(ValueError, match='batch_size=0'):
    readers.make_dataset('localhost:1', 'table', 0)
