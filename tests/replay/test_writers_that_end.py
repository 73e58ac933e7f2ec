"""Plans whose writers have a share each: who stops where one of them ends."""

import dataclasses
import threading
import time

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import reverb
import tensorflow as tf

from murmuration.replay import deadlock
from murmuration.replay import sampler as sampler_lib
from murmuration.replay import tables
from murmuration.replay import writer as writer_lib

SIGNATURE = tf.TensorSpec([2], tf.float32)
# Nothing here takes long; a stall lasts for ever.
PATIENCE_S = 30.0
STALL_S = 2.0

# Writers 0 and 2 have shard 0, writer 1 has shard 1.
_UNEVEN = deadlock.Plan(
  min_size=4,
  max_size=10_000,
  batch_size=4,
  samples_per_insert=1.0,
  max_in_flight=1,
  writers=3,
  shards=2,
)
_QUEUE = dataclasses.replace(
  _UNEVEN, queue=True, samples_per_insert=None, min_size=1, max_size=8
)


@pytest.fixture
def run(tmp_path_factory):
  """run(plan, shares, patience_s, act_on): whether all made their shares.

  Shares are of items. A writer that has made its own goes on until the last
  has, with `act_on`; else it ends. Once nobody has made one for `patience_s`,
  all give up.
  """

  def serve(plan):
    if plan.queue:
      table = tables.queue('table', plan.shard_max_size, SIGNATURE)
    else:
      table = tables.uniform(
        'table',
        plan.shard_max_size,
        plan.shard_min_size,
        SIGNATURE,
        deadlock.limiter(plan),
      )
    # Reverb's own choice of a directory would stay behind.
    path = str(tmp_path_factory.mktemp('checkpoints'))
    checkpointer = reverb.checkpointers.DefaultCheckpointer(path=path)
    return reverb.Server([table], None, checkpointer)

  def run(plan, shares, patience_s, act_on, in_flight=4):
    servers = [serve(plan) for _ in range(plan.shards)]
    addresses = [f'localhost:{server.port}' for server in servers]
    made, last = [0] * plan.writers, [time.monotonic()]

    def ended():
      return all(map(int.__ge__, made, shares))

    def stuck():
      # The first one has time: a stall is of what has moved before.
      limit_s = patience_s if any(made) else PATIENCE_S
      return time.monotonic() > last[0] + limit_s

    def give_up():
      return ended() or stuck()

    def write(i):
      writer = writer_lib.ItemWriter(
        reverb.Client(addresses[i % plan.shards]),
        'table',
        SIGNATURE,
        writer_lib.WriteOptions(max_in_flight=in_flight, should_stop=give_up),
      )
      while not give_up() and (act_on or made[i] < shares[i]):
        writer.append([np.zeros(2, np.float32)], 1.0)
        # A writer that was told to stop has not written.
        if not stuck():
          last[0] = time.monotonic()
          made[i] += 1
      # Its last items are as good as the others.
      writer.flush()
      writers.append(writer)

    writers = []
    threads = [
      threading.Thread(target=write, args=(i,)) for i in range(plan.writers)
    ]
    for thread in threads:
      thread.start()
    sampler = sampler_lib.ShardedSampler(
      addresses,
      'table',
      plan.batch_size,
      max_in_flight=plan.max_in_flight,
      should_stop=give_up,
    )
    try:
      for _ in sampler:
        if give_up():
          break
      assert any(made)
      return ended()
    finally:
      for thread in threads:
        thread.join()
      # The servers first: they end every wait inside Reverb.
      for server in servers:
        server.stop()
      sampler.close()
      for writer in writers:
        writer.close()

  return run


@pytest.mark.long
@hypothesis.settings(
  derandomize=True,
  deadline=None,
  max_examples=6,
  database=None,
  phases=[hypothesis.Phase.generate],
  suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(
  st.builds(
    lambda batch_size, **fields: deadlock.Plan(
      max_size=10_000,
      batch_size=max(batch_size, fields['shards']),
      max_in_flight=1,
      **fields,
    ),
    min_size=st.sampled_from([1, 20]),
    batch_size=st.sampled_from([1, 7, 16]),
    samples_per_insert=st.sampled_from([0.3, 1.0, 2.5]),
    writers=st.integers(2, 3),
    shards=st.integers(1, 2),
  ),
  st.sampled_from([1, 5]),
  st.lists(st.sampled_from([1, 60, 300]), min_size=3, max_size=3),
)
def test_writers_that_act_on_past_their_shares_never_stall(
  run, plan, in_flight, shares
):
  own = shares[: plan.writers]
  assert run(plan, own, PATIENCE_S, act_on=True, in_flight=in_flight)


@pytest.mark.long
@pytest.mark.parametrize('plan', [_UNEVEN, _QUEUE])
def test_shards_in_lockstep_stall_where_the_writers_of_one_end(run, plan):
  assert deadlock.lockstep(plan)
  # Writer 1 ends when the others have made half of theirs.
  assert not run(plan, [500] * 3, STALL_S, act_on=False)
  assert run(plan, [500] * 3, PATIENCE_S, act_on=True)


@pytest.mark.parametrize(
  'changes', [{'shards': 1}, {'samples_per_insert': None}]
)
def test_out_of_lockstep_writers_may_end_when_they_like(run, changes):
  plan = dataclasses.replace(_UNEVEN, **changes)
  assert not deadlock.lockstep(plan)
  assert run(plan, [50, 500, 300], PATIENCE_S, act_on=False)


@pytest.mark.parametrize('total', [7, 5003])
@pytest.mark.parametrize('writers, shards', [(1, 1), (3, 2), (5, 2), (8, 3)])
def test_in_lockstep_all_shards_get_the_same_of_a_total(total, writers, shards):
  plan = dataclasses.replace(_UNEVEN, writers=writers, shards=shards)
  parts = deadlock.parts(plan, total)
  assert len(parts) == writers and sum(parts) == total
  of_shards = [sum(parts[shard::shards]) for shard in range(shards)]
  assert max(of_shards) - min(of_shards) <= 1
  for shard in range(shards):
    own = parts[shard::shards]
    assert max(own) - min(own) <= 1


def test_out_of_lockstep_all_writers_make_the_same_of_a_total():
  plan = dataclasses.replace(_UNEVEN, samples_per_insert=None)
  assert deadlock.parts(plan, 5003) == [1668, 1668, 1667]
