"""Priorities: repaired, refused, and written back to their shards."""

import logging
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import priorities
from murmuration.replay import sampler
from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([1], tf.float32)
NAN, INF = float('nan'), float('inf')


def _sample(keys, where):
  zeros = np.zeros(len(keys))
  return sampler.Sample(
    data=zeros,
    keys=np.array(keys, np.uint64),
    probabilities=zeros,
    table_sizes=zeros,
    shards=np.array(where, np.int32),
    times_sampled=zeros,
  )


def _fill(client, num):
  """Writes `num` items of priority 1; returns their keys."""
  for value in range(num):
    client.insert(np.full(1, value, np.float32), {'table': 1.0})
  keys = set()
  while len(keys) < num:
    keys |= {s[0].info.key for s in client.sample('table', 50)}
  return sorted(keys)


def _stored(client):
  """Priorities by key, read from samples (exponent 0 draws all alike)."""
  return {
    s[0].info.key: s[0].info.priority for s in client.sample('table', 200)
  }


def _table():
  return tables.prioritized('table', 100, 1, SIGNATURE, 0.0)


@pytest.mark.parametrize(
  'given, wanted, count',
  [
    ([1.0, 0.0, 3.0], [1.0, 0.0, 3.0], 0),
    ([1.0, NAN, 3.0, INF, -INF], [1.0, 3.0, 3.0, 3.0, 3.0], 3),
    ([0.0, NAN], [0.0, 0.0], 1),
    ([NAN, INF], [1.0, 1.0], 2),
    ([1.0, 1e300], [1.0, priorities.LARGEST], 0),
    ([NAN, 1e300], [priorities.LARGEST] * 2, 1),
    ([], [], 0),
  ],
)
def test_what_is_not_finite_becomes_the_largest_finite(given, wanted, count):
  repaired, number = priorities.repair(np.array(given))
  np.testing.assert_array_equal(repaired, wanted)
  assert number == count


def test_negative_priorities_are_refused_with_their_place():
  priorities.check(np.array([0.0, NAN, INF]))
  with pytest.raises(ValueError, match='2 of 4.*first -1.5 at index 1'):
    priorities.check(np.array([0.0, -1.5, 2.0, -INF]))


@pytest.mark.parametrize('exponent', [0.0, 0.6, 1.0])
def test_an_item_is_drawn_as_often_as_its_transitions_would_be(exponent):
  given = np.random.default_rng(0).gamma(1.0, size=24)
  found = priorities.of_items(given, 4, exponent)
  wanted = []
  for first in range(0, 24, 4):
    own = [given[first + i] ** exponent for i in range(4)]
    wanted.append(sum(own) / 4)
  if exponent:
    np.testing.assert_allclose(found**exponent, wanted)
  else:
    np.testing.assert_allclose(found, given.reshape(6, 4).mean(1))
  np.testing.assert_array_equal(priorities.of_items(given, 1, 0.6), given)
  given[5] = NAN
  broken = priorities.of_items(given, 4, exponent)
  assert np.isnan(broken).tolist() == [False, True, *[False] * 4]


def test_priorities_go_to_the_shard_of_their_key(serve):
  clients = [serve(_table()).localhost_client() for _ in range(2)]
  keys = [_fill(client, 4) for client in clients]
  writer = priorities.PriorityWriter(clients, 'table')
  # The key of the other shard, too: it must not reach it.
  sample = _sample(
    [keys[0][0], keys[1][1], keys[0][2], keys[1][1]], [0, 1, 0, 0]
  )
  writer.update(sample, np.array([5.0, 6.0, NAN, 7.0], np.float32))
  assert writer.flush(60.0)
  assert writer.dropped == 0
  wanted = [dict.fromkeys(k, 1.0) for k in keys]
  wanted[0] |= {keys[0][0]: 5.0, keys[0][2]: 7.0}
  wanted[1] |= {keys[1][1]: 6.0}
  assert [_stored(client) for client in clients] == wanted
  writer.close()


def test_priorities_that_are_not_finite_are_said_once(serve, caplog):
  caplog.set_level(logging.WARNING, 'murmuration.replay.priorities')
  client = serve(_table()).localhost_client()
  keys = _fill(client, 3)
  writer = priorities.PriorityWriter([client], 'table')
  sample = _sample(keys, [0, 0, 0])
  writer.update(sample, np.array([1.0, 2.0, 3.0]))
  assert not caplog.records
  for _ in range(3):
    writer.update(sample, np.array([1.0, NAN, INF]))
  (record,) = caplog.records
  assert "2 of 3 priorities for table 'table'" in record.getMessage()
  assert 'Lower the learning rate' in record.getMessage()
  writer.close()


def test_updates_reach_a_shard_in_their_order(serve, monkeypatch):
  monkeypatch.setattr(priorities, 'MAX_WAITING', 500)
  client = serve(_table()).localhost_client()
  key = _fill(client, 1)[0]
  writer = priorities.PriorityWriter([client], 'table')
  for value in range(300):
    writer.update(_sample([key], [0]), np.array([float(value)]))
  assert writer.flush(60.0)
  assert _stored(client) == {key: 299.0} and not writer.dropped
  writer.close()


def test_a_dead_shard_loses_its_oldest_batches_and_stops_nobody(
  serve, caplog, monkeypatch
):
  monkeypatch.setattr(priorities, 'MAX_WAITING', 3)
  caplog.set_level(logging.WARNING, 'murmuration.replay.priorities')
  servers = [serve(_table()) for _ in range(2)]
  port = servers[1].port
  clients = [reverb.Client(f'localhost:{server.port}') for server in servers]
  key = _fill(clients[0], 1)[0]
  writer = priorities.PriorityWriter(clients, 'table')
  servers[1].stop()
  start = time.monotonic()
  for value in range(1, 41):
    writer.update(_sample([key, 12345], [0, 1]), np.array([value, value]))
    while _stored(clients[0]) != {key: value}:
      assert time.monotonic() - start < 60
    assert not writer.flush(0.01) or value < 5
  # The living shard has got all.
  assert 30 <= writer.dropped <= 40
  (message,) = [m for m in caplog.messages if f'localhost:{port} ' in m]
  assert 'are dropped' in message
  # It comes back: what waited is written.
  serve(_table(), port=port)
  assert writer.flush(60.0)
  writer.close()


class _Server:
  """A client, and its server: writes last until they are let go on.

  While it is `away` they fail then. It says nothing of its tables.
  """

  server_address = 'there'

  def __init__(self):
    self.away = False
    self.calls = []
    self.taken, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
    self._client = self

  def MutatePriorities(self, table, updates, deleted):
    del table, deleted
    self.calls.append(updates)
    self.taken.release()
    assert self.goes_on.acquire(timeout=60)
    if self.away:
      raise RuntimeError('cut off')

  def server_info(self, timeout):
    del timeout
    raise RuntimeError('does not answer')


@pytest.fixture
def slow():
  """A writer of two shards, of which the second is a `_Server`."""
  server = _Server()
  writer = priorities.PriorityWriter([_Server(), server], 'table')

  def update(*keys):
    sample = _sample(keys, [1] * len(keys))
    writer.update(sample, np.array(keys, float))

  yield server, writer, update
  server.away = False
  server.goes_on.release(1000)
  writer.close()


def test_a_shard_that_is_only_slow_is_said_once(slow, monkeypatch, caplog):
  monkeypatch.setattr(priorities, 'MAX_WAITING', 2)
  server, writer, update = slow
  for _ in range(10):
    for value in range(4):
      update(value)
    assert server.taken.acquire(timeout=60)
    server.goes_on.release()  # one of them gets through
  server.goes_on.release(100)
  assert writer.flush(60.0)
  assert writer.dropped >= 20
  assert caplog.text.count('are dropped') == 1
  # It has caught up: the next time is another.
  server.goes_on = threading.Semaphore(0)
  for value in range(4):
    update(value)
  assert caplog.text.count('are dropped') == 2


def test_the_oldest_that_wait_are_dropped_and_each_priority_is_counted(
  slow, monkeypatch
):
  monkeypatch.setattr(priorities, 'MAX_WAITING', 2)
  server, writer, update = slow
  update(1)
  assert server.taken.acquire(timeout=60)
  # The first is on its way: none waits, but it is not written yet.
  assert not writer.flush(0.01)
  update(2, 3, 4)
  update(5)
  assert not writer.dropped
  update(6, 7)
  assert writer.dropped == 3
  server.goes_on.release(10)
  assert writer.flush(60.0)
  keys = [[key for key, _ in call] for call in server.calls]
  assert keys == [[1], [5], [6, 7]]


def test_a_shard_that_fails_is_written_to_again_when_it_is_back(slow, caplog):
  server, writer, update = slow
  server.goes_on.release(100)
  for outage in (1, 2):
    server.away = True
    for _ in range(2):
      update(1, 2)
      assert writer.flush(60.0)
    assert writer.dropped == 4 * outage
    # Once for each time that it is away.
    assert caplog.text.count('failed (cut off)') == outage
    server.away = False
    update(3)
    assert writer.flush(60.0)
    assert writer.dropped == 4 * outage and server.calls[-1] == [(3, 3.0)]


def test_a_server_that_ends_before_its_closed_writer_is_not_said(slow, caplog):
  server, writer, update = slow
  update(1)
  assert server.taken.acquire(timeout=60)
  server.away = True
  writer.close()
  server.goes_on.release()
  for thread in threading.enumerate():
    if thread.name == 'replay-priorities':
      thread.join(60)
  assert not writer.dropped and not caplog.records


def test_an_update_that_cannot_be_meant_is_refused(serve):
  client = serve(_table()).localhost_client()
  writer = priorities.PriorityWriter([client], 'table')
  with pytest.raises(ValueError, match=r'shape \(2,\)'):
    writer.update(_sample([1], [0]), np.ones(2))
  with pytest.raises(ValueError, match=r'shape \(1, 1\)'):
    writer.update(_sample([1], [0]), np.ones((1, 1)))
  with pytest.raises(ValueError, match='negative'):
    writer.update(_sample([1], [0]), np.array([-1.0]))
  writer.close()
