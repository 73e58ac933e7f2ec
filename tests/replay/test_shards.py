"""Samples mixed from several shards, through the death of one."""

import itertools
import logging
import queue
import threading
import time

import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import priorities
from murmuration.replay import readers
from murmuration.replay import sampler as sampler_lib
from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([2], tf.float32)


def _table(min_size=1, exponent=1.0):
  return tables.prioritized('table', 1000, min_size, SIGNATURE, exponent)


def _write(server, values, priority=1.0):
  with reverb.Client(_address(server)).trajectory_writer(1) as writer:
    for value in values:
      writer.append(np.full(2, value, np.float32))
      writer.create_item('table', priority, writer.history[-1])


def _address(server):
  return f'localhost:{server.port}'


@pytest.mark.parametrize('num_shards, batch_size', [(1, 5), (2, 6), (3, 7)])
def test_every_update_has_as_many_items_of_each_shard(num_shards, batch_size):
  share, rest = divmod(batch_size, num_shards)
  totals = np.zeros(num_shards, int)
  for turn in range(num_shards):
    places = sampler_lib.places(num_shards, 4, batch_size, turn)
    owners = np.full(4 * batch_size, -1)
    for shard, place in enumerate(places):
      assert np.all(np.diff(place) > 0)
      owners[place] = shard
    assert owners.min() >= 0 and sum(map(len, places)) == 4 * batch_size
    for update in owners.reshape(4, batch_size):
      counts = np.bincount(update, minlength=num_shards)
      assert set(counts) <= {share, share + (rest > 0)}
    totals += np.bincount(owners, minlength=num_shards)
  # What does not divide goes round.
  assert len(set(totals)) == 1


def test_the_size_of_replay_is_by_the_newest_count_of_each_shard():
  sample = sampler_lib.Sample(
    data=None,
    keys=None,
    probabilities=None,
    table_sizes=np.array([10, 12, 500, 11, 600]),
    shards=np.array([0, 0, 2, 0, 2]),
    times_sampled=None,
  )
  assert sampler_lib.table_size(sample) == 11 + 600


class _Reader:
  """A reader whose batches the test puts into it."""

  def __init__(self, make):
    del make
    self.results, self.slots = queue.Queue(), threading.Semaphore(0)
    self.closed = False

  def put(self, *keys):
    info = reverb.SampleInfo(
      *[tf.constant(keys)] * len(reverb.SampleInfo._fields)
    )
    self.results.put(reverb.ReplaySample(info, tf.constant(keys)))

  def close(self, timeout_s):
    del timeout_s
    self.closed = True


@pytest.fixture
def stream(monkeypatch):
  """A stream with a `_Reader`."""
  monkeypatch.setattr(readers, 'Reader', _Reader)
  return sampler_lib.Stream(0, 'there', lambda: None)


def test_items_leave_a_stream_once_each_in_their_order(stream):
  given, taken = 0, []
  for batches, count in ((2, 4), (3, 2), (0, 3), (0, 6)):
    for _ in range(batches):
      stream._reader.put(given, given + 1, given + 2)
      assert stream.poll()
      assert stream._reader.slots.acquire(blocking=False)
      given += 3
    part = stream.take(count)
    np.testing.assert_array_equal(part.info.key, part.data)
    assert len(part.data) == count
    taken.extend(part.data.numpy())
    assert stream.num_held == given - len(taken)
  assert taken == list(range(15))


def test_what_a_shard_gave_before_it_was_left_out_is_not_given_after(stream):
  stream._reader.put(1, 2)
  assert stream.poll() and stream.num_held == 2
  before = stream._reader
  stream.drop()
  # Of a server that is back, these keys may be other items.
  assert not stream.num_held
  assert before.closed and stream._reader is not before
  before.put(3, 4)
  assert not stream.poll()


def test_only_the_loss_of_a_server_is_waited_for(stream):
  before = stream._reader
  before.results.put(ConnectionError('away'))
  assert not stream.poll()
  assert not stream.poll()
  assert stream._reader is not before
  stream._reader.put(1)
  assert stream.poll()
  stream._reader.results.put(ValueError('another table'))
  with pytest.raises(ValueError, match='another table'):
    stream.poll()


def test_one_shard_gives_its_items_as_they_are(serve):
  server = serve(_table())
  _write(server, range(10))
  _write(server, [99], priority=10.0)
  sampler = sampler_lib.ShardedSampler(
    [_address(server)], 'table', 64, updates=2
  )
  sample = next(sampler)
  assert isinstance(sample.data, tf.Tensor) and sample.data.shape == (128, 2)
  high = sample.data.numpy()[:, 0] == 99
  np.testing.assert_allclose(
    sample.probabilities, np.where(high, 0.5, 0.05), rtol=1e-6
  )
  np.testing.assert_array_equal(sample.table_sizes, np.full(128, 11))
  np.testing.assert_array_equal(sample.shards, np.zeros(128))
  assert [field.dtype for field in sample[1:]] == [
    np.uint64,
    np.float32,
    np.int64,
    np.int32,
    np.int32,
  ]
  # The 10 others share one sample in two.
  times = dict(zip(sample.keys[high], sample.times_sampled[high]))
  assert len(times) == 1 and max(times.values()) >= high.sum()
  sampler.close()


@pytest.mark.parametrize('batch_size', [8, 9])
def test_shards_are_mixed_evenly_and_keys_belong_to_their_shard(
  serve, batch_size
):
  servers = [serve(_table()) for _ in range(2)]
  for shard, server in enumerate(servers):
    # Shard 1 has more items, and of more priority: neither matters.
    _write(server, range(100 * shard, 100 * shard + 10 + 10 * shard), 1 + shard)
  sampler = sampler_lib.ShardedSampler(
    [_address(server) for server in servers], 'table', batch_size, updates=3
  )
  key_of, counts = {}, np.zeros(2, int)
  for sample in itertools.islice(sampler, 40):
    values = sample.data.numpy()[:, 0]
    np.testing.assert_array_equal(sample.shards, values >= 100)
    np.testing.assert_allclose(
      sample.probabilities, np.where(sample.shards, 1 / 20, 1 / 10) / 2
    )
    np.testing.assert_array_equal(
      sample.table_sizes, np.where(sample.shards, 20, 10)
    )
    for update in sample.shards.reshape(3, batch_size):
      assert abs(2 * update.sum() - batch_size) <= 1
    counts += np.bincount(sample.shards, minlength=2)
    for key, value in zip(sample.keys, values):
      assert key_of.setdefault(key, value) == value
  assert abs(counts[0] - counts[1]) <= 1
  assert len(key_of) == 30

  # Priorities go back to where the keys came from.
  writer = priorities.PriorityWriter(
    [server.localhost_client() for server in servers], 'table'
  )
  last = next(sampler)
  writer.update(last, np.where(last.shards, 7.0, 3.0))
  assert writer.flush(60.0)
  for shard, server in enumerate(servers):
    stored = {
      s[0].info.key: s[0].info.priority
      for s in server.localhost_client().sample('table', 300)
    }
    # A key of 20 at most, and of the higher priorities: 300 draws miss none.
    for key in last.keys[last.shards == shard]:
      assert stored[key] == (3.0, 7.0)[shard]
  writer.close()
  sampler.close()


def test_a_dead_shard_is_left_out_and_taken_back(serve, caplog):
  # On a busy machine it also says that a shard takes its time.
  caplog.set_level(logging.WARNING, 'murmuration.replay.sampler')
  servers = [serve(_table()) for _ in range(2)]
  for shard, server in enumerate(servers):
    _write(server, [shard] * 10)
  port = servers[1].port
  sampler = sampler_lib.ShardedSampler(
    [_address(server) for server in servers], 'table', 8
  )
  assert set(next(sampler).shards) == {0, 1}
  servers[1].stop()

  def until(wanted):
    deadline = time.monotonic() + 60
    while True:
      sample = next(sampler)
      np.testing.assert_array_equal(sample.data.numpy()[:, 0], sample.shards)
      if set(sample.shards) == wanted:
        return sample
      assert time.monotonic() < deadline

  sample = until({0})
  assert len(sample.keys) == 8 and sampler.living == [0]
  # All of the stream is now what this shard gives.
  np.testing.assert_allclose(sample.probabilities, 0.1)
  _write(serve(_table(), port=port), [1] * 10)
  sample = until({0, 1})
  np.testing.assert_allclose(sample.probabilities, 0.05)
  said = [record.getMessage() for record in caplog.records]
  assert len(said) == 2, said
  assert (
    f'shard 1 at localhost:{port} does not answer and is left out' in said[0]
  )
  assert 'gives samples again: 2 of 2' in said[1]
  sampler.close()


def test_a_shard_that_starves_is_waited_for(serve, caplog, once_said):
  caplog.set_level(logging.INFO, 'murmuration.replay.sampler')
  servers = [serve(_table()), serve(_table(min_size=5))]
  _write(servers[0], [0] * 10)
  sampler = sampler_lib.ShardedSampler(
    [_address(server) for server in servers], 'table', 8
  )
  once_said('gives samples from', _write, servers[1], [1] * 5)
  assert set(next(sampler).shards) == {0, 1}
  # A busy machine may have it wait for the other one, too.
  (message,) = [m for m in caplog.messages if _address(servers[1]) in m]
  assert 'gives samples from 5 on' in message
  sampler.close()


@pytest.mark.long
@pytest.mark.parametrize('deaths', [1, 2])
def test_a_lost_shard_that_is_back_may_take_its_time_to_fill(
  serve, caplog, deaths
):
  caplog.set_level(logging.INFO, 'murmuration.replay.sampler')
  server = serve(_table())
  _write(server, [1] * 10)
  port = server.port
  sampler = sampler_lib.ShardedSampler(
    [_address(server)],
    'table',
    8,
    connect_timeout_s=20,
    should_stop=lambda: time.monotonic() > deadline,
  )
  deadline = time.monotonic() + 180
  next(sampler)
  over = threading.Event()

  def come_back(server):
    for _ in range(deaths):
      caplog.clear()
      server.stop()
      time.sleep(2.5)
      while sampler.living:
        if over.wait(0.1):
          return
      server = serve(_table(min_size=5), port=port)
      while 'gives samples from 5 on' not in caplog.text:
        if over.wait(0.1):
          return
    if over.wait(22.0):  # longer than it may be away
      return
    _write(server, [2] * 5)

  # A daemon: where `next` raises, nobody answers it any more.
  thread = threading.Thread(target=come_back, args=(server,), daemon=True)
  thread.start()
  try:
    while not np.all(next(sampler).data == 2):
      pass
  finally:
    over.set()
    thread.join(30)
  said = caplog.messages
  # That it is left out is said once: it was not taken back in between.
  assert len(said) == (3 if deaths == 1 else 2), said
  assert 'gives samples from 5 on' in said[-2]
  assert 'gives samples again' in said[-1]
  sampler.close()


@pytest.mark.long
def test_a_shard_that_dies_twice_is_taken_back_beside_one_that_lives(
  serve, monkeypatch
):
  monkeypatch.setattr(sampler_lib, '_STUCK_S', 5.0)
  make, found = readers.make_dataset, []

  def remember(address, *args, **options):
    dataset = make(address, *args, **options)
    found.append(address)
    return dataset

  monkeypatch.setattr(readers, 'make_dataset', remember)
  servers = [serve(_table()) for _ in range(2)]
  addresses = [_address(server) for server in servers]
  for server in servers:
    _write(server, [1] * 10)
  sampler = sampler_lib.ShardedSampler(addresses, 'table', 8)

  def until(condition):
    deadline = time.monotonic() + 100
    while not condition(next(sampler)):
      assert time.monotonic() < deadline

  until(lambda sample: set(sample.shards) == {0, 1})
  servers[1].stop()
  until(lambda _: sampler.living == [0])
  found.clear()
  server = serve(_table(min_size=5), port=servers[1].port)
  until(lambda _: found)
  # Its reader waits inside Reverb by then; one that does not, is not stuck.
  begun = time.monotonic()
  until(lambda _: time.monotonic() - begun > 2)
  server.stop()
  gone = time.monotonic()
  until(lambda _: time.monotonic() - gone > 3)
  _write(serve(_table(), port=servers[1].port), [1] * 10)
  until(lambda sample: set(sample.shards) == {0, 1})
  sampler.close()


def test_a_limiter_that_gives_samples_by_drops_loses_none(serve):
  # A dataset with a timeout of the limiter would drop what it holds each time.
  table = tables.prioritized(
    'table',
    1000,
    1,
    SIGNATURE,
    rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2, 1, error_buffer=2),
  )
  server = serve(table)
  sampler = sampler_lib.ShardedSampler([_address(server)], 'table', 8)
  writer = threading.Thread(
    target=lambda: [(_write(server, [i]), time.sleep(0.02)) for i in range(40)]
  )
  writer.start()
  # 2 x 40 samples, less those of the error buffer, in batches of 8.
  for _ in range(9):
    next(sampler)
  writer.join()
  sampler.close()


def test_a_sharded_sampler_stops_when_asked(serve):
  server = serve(_table(min_size=5))
  for addresses in ([_address(server)], ['localhost:1'] * 2):
    sampler = sampler_lib.ShardedSampler(
      addresses, 'table', 4, should_stop=lambda: True
    )
    assert list(sampler) == []
    sampler.close()


@pytest.mark.long
def test_shards_that_are_never_there_are_named():
  sampler = sampler_lib.ShardedSampler(
    ['localhost:1', 'localhost:2'],
    'table',
    4,
    connect_timeout_s=0.5,
  )
  with pytest.raises(ConnectionError, match='localhost:1, localhost:2.*0.5 s'):
    next(sampler)
  sampler.close()


def test_another_table_or_signature_is_refused_with_the_reason(serve):
  addresses = [_address(serve(_table()))]
  wrong = sampler_lib.ShardedSampler(addresses, 'tabel', 4)
  with pytest.raises(ValueError, match="no table 'tabel' at .*, only table"):
    next(wrong)
  other = sampler_lib.ShardedSampler(
    addresses, 'table', 4, signature=tf.TensorSpec([3], tf.float32)
  )
  with pytest.raises(ValueError, match=r'holds .*2,.*but .*3,'):
    next(other)
  for sampler in (wrong, other):
    sampler.close()


def test_a_batch_has_items_of_each_shard():
  with pytest.raises(ValueError, match='batch_size=4'):
    sampler_lib.ShardedSampler(['localhost:1'] * 5, 'table', 4)
