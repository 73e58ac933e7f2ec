"""Synchronous learners: a shard moves by the mean of a round (A2C)."""

import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from agents import dqn
from agents import ppo
from agents.exchange import local as local_exchange
from launch.services import shard as shard_lib
from tests.launch.services import shard_cases as cases

UPDATES = cases.UPDATES


def _together(config, shards, calls, count=2, end=False):
  """Learners in threads; `calls[i]`: seeds of learner i. Then it may `end`."""
  made = [cases.remote(config, shards, i) for i in range(count)]
  for one, _ in made:
    # Who compiles in a round may miss it.
    one.trace(tf.TensorSpec.from_tensor(cases.packed(0)))

  def learn(index):
    for seed in calls[index]:
      made[index][0].step(cases.packed(seed))
    if end:
      made[index][1].ended()

  threads = [
    threading.Thread(target=learn, args=(i,), daemon=True) for i in range(count)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
  return [one for one, _ in made]


def test_synchronous_learners_apply_the_mean_of_their_gradients():
  config = cases.make_config(
    num_learners=2, synchronous=True, sync_timeout_s=200.0
  )
  shards = cases.make_shards(config)
  one, two = _together(config, shards, [range(5), range(5)])
  np.testing.assert_array_equal(one.parameters(), two.parameters())
  alone = cases.make_learner(local_exchange.Local())
  for seed in range(5):
    alone.step(cases.packed(seed))
  # The mean of two equal gradients is each of them; so is the loop.
  np.testing.assert_allclose(
    one.parameters(), alone.parameters(), rtol=1e-5, atol=1e-5
  )
  assert shards[0].shard.numbers()['version'] == 5 * UPDATES
  assert one._exchange.scheduled(one.updates) == 2 * 5 * UPDATES


def _falling(experiment, agent, config):
  made = dataclasses.replace(experiment, make_agent=lambda: agent)
  return shard_lib.Shard(made, config, 0)


def _push_each(shard, learners, number, steps):
  """One call of each learner at the same time, which says its own steps."""
  gradient = np.ones_like(shard.pull().theta)
  version = shard.pull().version
  threads = [
    threading.Thread(
      target=shard.push,
      args=(i, f'{i}-{number}', version, gradient, (), steps),
      daemon=True,
    )
    for i in learners
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()


def test_rates_fall_by_the_gradients_of_all_also_if_their_number_changes(
  tmp_path,
):
  agent = dqn.DQN(
    dqn.Config(hidden_sizes=(4,), optimizer='sgd', anneal_updates=40),
    cases.SPEC,
  )
  experiment = cases.make_experiment(str(tmp_path))
  make = functools.partial(_falling, experiment, agent)
  shard = make(cases.make_config(num_learners=2, synchronous=True))
  for number in range(10):
    _push_each(shard, range(2), number, 0)
  assert shard.pull().version == 10 and shard.pull().scheduled == 20
  stop = threading.Event()
  stop.set()
  shard.run(stop)  # which saves
  for changes in (
    {'num_learners': 1},
    {'num_learners': 5, 'synchronous': True},
  ):
    assert make(cases.make_config(**changes)).pull().scheduled == 20
  alone = make(cases.make_config(num_learners=1))
  before = alone.pull().theta
  _push_each(alone, [0], 10, 0)
  # Half of 40 were made: half the rate.
  moved = before - alone.pull().theta
  np.testing.assert_allclose(moved, agent.learning_rate / 2, rtol=1e-4)


def test_rates_fall_by_environment_steps_also_of_updates_that_are_stopped():
  config = ppo.Config(
    hidden_sizes=(4,),
    rollout_steps=128,
    unroll_length=16,
    batch_size=32,
    epochs=2,
    anneal_env_steps=1280,
  )
  agent = ppo.PPO(config, cases.SPEC)
  assert agent.updates_per_call == 8
  shard = _falling(cases.make_experiment(), agent, cases.make_config())
  factor = shard._slice._factor
  for rollout in range(10):
    for update in range(8):
      steps = 128 * (rollout + 1)
      gradient = np.ones_like(shard.pull().theta) if update < 2 else None
      number = 8 * rollout + update
      shard.push(0, f'a-{number}', shard.pull().version, gradient, (), steps)
      at = shard._scheduled(1)
      assert factor(at) == pytest.approx(1 - rollout / 10)
  assert shard.pull().version == 20


def test_one_that_is_missing_is_waited_for_once(caplog):
  config = cases.make_config(
    num_learners=2, synchronous=True, sync_timeout_s=3.0
  )
  shards = cases.make_shards(config)
  one, _ = _together(config, shards, [range(3), range(1)])
  assert one.updates == 3 * UPDATES
  assert shards[0].shard.numbers()['version'] == 3 * UPDATES
  assert caplog.text.count('goes on without learner 1') == 1


@pytest.mark.parametrize('moves', [True, False])
def test_a_call_that_comes_again_as_its_round_closes_gets_its_verdict(
  moves, monkeypatch, caplog
):
  config = cases.make_config(
    num_learners=2, synchronous=True, sync_timeout_s=3.0
  )
  (client,) = cases.make_shards(config)
  shard, close, found = client.shard, client.shard._close, {}
  gradient = np.ones_like(shard.pull().theta) if moves else None

  def push(learner):
    return shard.push(learner, f'{learner}-1', 0, gradient, (), 0)

  def close_and_ask_again(*round_):
    close(*round_)
    # Before whoever waits for the round has woken.
    monkeypatch.undo()
    found['again'] = push(0)

  monkeypatch.setattr(shard, '_close', close_and_ask_again)
  threads = [
    threading.Thread(target=lambda i=i: found.update({i: push(i)}), daemon=True)
    for i in range(2)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert {key: reply.accepted for key, reply in found.items()} == {
    0: True,
    1: True,
    'again': True,
  }
  assert shard.numbers()['version'] == int(moves)
  assert shard.numbers()['gradients_rejected'] == 0
  # Nor does it stand in the next round, which would close without the other.
  assert 'goes on without' not in caplog.text


def test_one_that_learns_no_more_is_not_waited_for(caplog):
  config = cases.make_config(
    num_learners=2, synchronous=True, sync_timeout_s=200.0
  )
  shards = cases.make_shards(config)
  one, _ = _together(config, shards, [range(3), range(1)], end=True)
  assert one.updates == 3 * UPDATES
  assert shards[0].shard.numbers()['version'] == 3 * UPDATES
  assert 'goes on without' not in caplog.text
