"""Plans: what is accepted never stalls on a real server; what is refused does.

Writers are Reverb's own, with items held back (`burst`) and in flight as the
adders do it.
"""

import dataclasses
import functools
import itertools
import threading
import time

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import checkpoints
from murmuration.replay import deadlock
from murmuration.replay import sampler
from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([2], tf.float32)
BATCHES = 12
# Nothing here takes long beside nothing else; a stall lasts for ever.
PATIENCE_S = 120.0
STALL_S = 2.0


class _Stalled(Exception):
  pass


class _Writer:
  """Holds `burst` items, then writes them; bounded items in flight."""

  def __init__(self, address, plan, give_up):
    self._plan = plan
    self._give_up = give_up
    self._writer = reverb.Client(address).trajectory_writer(1)
    self._held = self._unconfirmed = 0

  def add(self):
    self._held += 1
    if self._held < self._plan.burst:
      return
    for _ in range(self._held):
      self._writer.append(np.zeros(2, np.float32))
      self._writer.create_item('table', 1.0, self._writer.history[-1])
      self._unconfirmed += 1
      # As many as the sampler's, so that a plan gives both.
      while self._unconfirmed >= self._plan.max_in_flight:
        leave = self._plan.max_in_flight // 2
        try:
          self._writer.flush(leave, timeout_ms=50)
          self._unconfirmed = leave
        except reverb.errors.DeadlineExceededError as e:
          if self._give_up():
            raise _Stalled from e
    self._held = 0


def _table(plan, limiter):
  if plan.queue:
    return tables.queue('table', plan.shard_max_size, SIGNATURE)
  return tables.uniform(
    'table',
    plan.shard_max_size,
    plan.shard_min_size,
    SIGNATURE,
    limiter() if limiter else deadlock.limiter(plan),
  )


def _sampler(plan, servers, give_up):
  return sampler.ShardedSampler(
    [f'localhost:{server.port}' for server in servers],
    'table',
    plan.batch_size,
    max_in_flight=plan.max_in_flight,
    should_stop=give_up,
  )


def _run_apart(plan, patience_s, limiter=None):
  """Writers and learner in threads of their own; the batches that came."""
  servers = [_server(_table(plan, limiter)) for _ in range(plan.shards)]
  deadline = time.monotonic() + patience_s
  done = threading.Event()

  def give_up():
    return done.is_set() or time.monotonic() > deadline

  def write(i):
    address = f'localhost:{servers[i % plan.shards].port}'
    writer = _Writer(address, plan, give_up)
    try:
      while not give_up():
        writer.add()
    except _Stalled:
      pass

  threads = [
    threading.Thread(target=write, args=(i,)) for i in range(plan.writers)
  ]
  for thread in threads:
    thread.start()
  sampler = _sampler(plan, servers, give_up)
  try:
    return len(list(itertools.islice(sampler, BATCHES)))
  finally:
    done.set()
    for thread in threads:
      thread.join()
    _stop(sampler, servers)


def _server(table):
  # Reverb's own choice of a directory would stay behind.
  checkpointer = reverb.checkpointers.DefaultCheckpointer(
    path=_server.directory
  )
  return reverb.Server([table], None, checkpointer)


@pytest.fixture(autouse=True)
def _directory(tmp_path_factory):
  _server.directory = str(tmp_path_factory.mktemp('checkpoints'))


def _stop(sampler, servers):
  # The servers first: they end every wait inside Reverb.
  checkpoints.stop(servers)
  sampler.close()


def _plans():
  sizes = st.sampled_from([1, 2, 5, 17])
  return st.builds(
    lambda **fields: dataclasses.replace(
      deadlock.Plan(**fields),
      min_size=fields['min_size'] * fields['shards'],
      batch_size=max(fields['batch_size'], fields['shards']),
    ),
    min_size=st.sampled_from([1, 3, 20]),
    max_size=st.just(200),
    batch_size=st.sampled_from([1, 4, 7, 64]),
    samples_per_insert=st.sampled_from([0.3, 1.0, 2.5, 8.0, 32.0]),
    max_in_flight=sizes,
    writers=st.integers(2, 3),
    burst=sizes,
    shards=st.integers(1, 2),
  )


def _tightest(plan):
  """The plan with the smallest error buffer that is accepted."""
  with pytest.raises(deadlock.Refused) as refused:
    deadlock.check(dataclasses.replace(plan, error_buffer=1e-6))
  least = float(str(refused.value).split(' = ')[1].split(' are needed')[0])
  with pytest.raises(deadlock.Refused, match='error_buffer'):
    deadlock.check(dataclasses.replace(plan, error_buffer=0.999 * least))
  return dataclasses.replace(plan, error_buffer=least)


_settings = hypothesis.settings(
  derandomize=True,
  deadline=None,
  max_examples=8,
  database=None,
  phases=[hypothesis.Phase.generate],
  suppress_health_check=list(hypothesis.HealthCheck),
)


@_settings
@hypothesis.given(_plans())
def test_an_accepted_plan_never_stalls_with_threads_of_their_own(plan):
  assert _run_apart(_tightest(plan), PATIENCE_S) == BATCHES


@_settings
@hypothesis.given(_plans())
def test_the_default_error_buffer_is_always_accepted(plan):
  buffer = plan.shard_error_buffer
  deadlock.check(dataclasses.replace(plan, error_buffer=buffer))


@pytest.mark.parametrize(
  'min_size, batch_size, writers, burst, shards, buffer',
  [
    # Each term is the largest once; over shards, by what the fullest has.
    (10, 64, 1, 1, 1, 256.0),
    (10, 1, 3, 3, 1, 144.0),
    (1000, 64, 1, 1, 1, 800.0),
    (10, 127, 2, 1, 2, 256.0),
    (10, 2, 5, 3, 2, 144.0),
    (1999, 127, 2, 1, 2, 800.0),
  ],
)
def test_the_default_error_buffer_is_the_largest_of_three(
  min_size, batch_size, writers, burst, shards, buffer
):
  plan = deadlock.Plan(
    min_size,
    2000,
    batch_size,
    samples_per_insert=8.0,
    writers=writers,
    burst=burst,
    shards=shards,
  )
  info = _table(plan, None).info.rate_limiter_info
  assert info.min_size_to_sample == -(-min_size // shards)
  offset = 8.0 * info.min_size_to_sample
  assert (info.min_diff, info.max_diff) == (offset - buffer, offset + buffer)


def test_a_queue_never_stalls_however_small_it_is():
  plan = deadlock.Plan(
    min_size=1,
    max_size=2,
    batch_size=8,
    queue=True,
    writers=3,
    burst=5,
    max_in_flight=1,
  )
  deadlock.check(plan)
  assert _run_apart(plan, PATIENCE_S) == BATCHES


def _raw(ratio, min_size, buffer):
  """A limiter that Reverb itself would refuse."""
  middle = ratio * min_size
  return reverb.rate_limiters.RateLimiter(
    ratio, min_size, middle - buffer, middle + buffer
  )


def test_a_table_that_stops_both_sides_is_refused_and_stalls():
  # 2 E < 1 + r: after 4 inserts of r = 4, x = 16 allows neither.
  plan = deadlock.Plan(
    min_size=4,
    max_size=100,
    batch_size=1,
    samples_per_insert=4.0,
    error_buffer=0.9,
  )
  with pytest.raises(
    deadlock.Refused,
    match=r'samples_per_insert=4\) = 4 are needed.*to at least 4',
  ):
    deadlock.check(plan)
  assert _run_apart(plan, STALL_S, lambda: _raw(4.0, 4, 0.9)) == 0


def test_a_shard_without_a_writer_is_refused_and_stalls():
  plan = deadlock.Plan(
    min_size=2, max_size=100, batch_size=4, writers=1, shards=2
  )
  with pytest.raises(deadlock.Refused, match='Raise writers to at least 2'):
    deadlock.check(plan)
  limiter = functools.partial(reverb.rate_limiters.MinSize, 1)
  assert _run_apart(plan, STALL_S, limiter) == 0
  fixed = dataclasses.replace(plan, writers=2)
  assert _run_apart(fixed, PATIENCE_S) == BATCHES


@pytest.mark.parametrize(
  'changes, reason',
  [
    ({'min_size': 101}, 'Raise max_size to at least 101'),
    ({'writers': 4, 'shards': 4, 'batch_size': 3}, 'spread over shards=4'),
    ({'writers': 4, 'shards': 4, 'updates': 4}, 'to at least 16'),
    ({'error_buffer': 10.0}, 'means nothing without'),
    ({'samples_per_insert': 2.0, 'error_buffer': float('nan')}, 'buffer=nan'),
    ({'samples_per_insert': 8.0, 'error_buffer': 7.9}, '=8. = 8 are needed'),
    ({'samples_per_insert': 0.5, 'error_buffer': 0.9}, '=0.5. = 1 are needed'),
  ],
)
def test_a_plan_that_cannot_work_is_refused_with_its_number(changes, reason):
  plan = deadlock.Plan(min_size=10, max_size=100, batch_size=8)
  deadlock.check(plan)
  with pytest.raises(deadlock.Refused, match=reason):
    deadlock.check(dataclasses.replace(plan, **changes))
