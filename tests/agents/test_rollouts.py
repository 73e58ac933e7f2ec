"""How blocks become minibatches: each step once in an epoch, its return."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.replay import blocks
from tests.agents import ppo_cases
from tests.agents import unroll_cases as cases

T, K = cases.T, cases.K
BLOCKS, STEPS, UPDATES = ppo_cases.BLOCKS, ppo_cases.STEPS, ppo_cases.UPDATES


def _rows(minibatch):
  """Observations, actions and returns of the steps of a minibatch."""
  steps = minibatch.block.reward.shape[1]
  return [
    tuple(np.round(np.concatenate([x, [a, r]]), 5))
    for x, a, r in zip(
      minibatch.block.observation[:, :steps].numpy().reshape(-1, 2),
      minibatch.block.action.numpy().reshape(-1),
      minibatch.returns.numpy().reshape(-1),
    )
  ]


@pytest.mark.parametrize('memory', [False, True])
def test_each_step_is_learned_from_once_in_each_epoch(memory):
  agent = ppo_cases.make_agent(
    **({'stack': 2, 'batch_size': 2 * T} if memory else {})
  )
  assert agent.updates_per_call == UPDATES
  theta = cases.make_theta(agent)
  sample = ppo_cases.make_sample(agent)
  batch = ppo_cases.arranged(agent, theta, sample)
  rows = [_rows(ppo_cases.one(batch, update)) for update in range(UPDATES)]
  half = UPDATES // 2
  epochs = [sum(rows[:half], []), sum(rows[half:], [])]
  assert len(set(epochs[0])) == STEPS
  assert sorted(epochs[0]) == sorted(epochs[1])
  assert epochs[0] != epochs[1], 'each epoch has an order of its own'
  acted_on = batch.block.observation[:half, 0, :, :-1].numpy()
  np.testing.assert_array_equal(
    np.unique(acted_on.reshape(-1, 2), axis=0),
    np.unique(sample.observation[:, :T].numpy().reshape(-1, 2), axis=0),
  )
  if not memory:
    expected = [
      step['advantage'] + step['value']
      for step in ppo_cases.slow_steps(agent, theta, sample)
    ]
    valid = batch.mask[:half].numpy() > 0
    np.testing.assert_allclose(
      np.sort(batch.returns[:half].numpy()[valid]),
      np.sort(expected),
      rtol=1e-4,
      atol=1e-5,
    )


def test_a_rollout_is_shuffled_alike_in_every_run_but_unlike_the_next():
  agent = ppo_cases.make_agent()
  theta, sample = cases.make_theta(agent), ppo_cases.make_sample(agent)
  first = ppo_cases.arranged(agent, theta, sample)
  again = ppo_cases.arranged(agent, theta, sample)
  np.testing.assert_array_equal(first.returns, again.returns)
  later = sample._replace(version=sample.version + UPDATES)
  assert (
    (ppo_cases.arranged(agent, theta, later).returns != first.returns)
    .numpy()
    .any()
  )


@pytest.mark.parametrize('memory', [False, True])
def test_members_see_their_own_environments_as_if_alone(memory):
  options = {'stack': 2, 'batch_size': 2 * T} if memory else {}
  agent = ppo_cases.make_agent(**options)
  thetas = np.stack([cases.make_theta(agent, 0), cases.make_theta(agent, 1)])
  sample = ppo_cases.make_sample(agent, num_envs=2 * K)
  both = ppo_cases.arranged(agent, thetas, sample, 2 * K)
  for member in range(2):
    own = slice(member * K, (member + 1) * K)
    columns = sample._asdict()
    for name, axis in blocks.ENVIRONMENT_AXIS.items():
      index = (slice(None),) * (axis + 1) + (own,)
      columns[name] = sample._asdict()[name][index]
    alone = ppo_cases.arranged(agent, thetas[member], blocks.Block(**columns))
    for got, expected in zip(
      tf.nest.flatten(ppo_cases.one(both, 3, member)),
      tf.nest.flatten(ppo_cases.one(alone, 3)),
    ):
      np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_shuffles_depend_on_the_seed_of_the_run_and_on_nothing_else():
  agent, sample = (
    ppo_cases.make_agent(),
    ppo_cases.make_sample(ppo_cases.make_agent()),
  )
  theta = tf.constant(agent.initial(0)[None])

  def first_minibatches(seed, compiled=False):
    feed = agent.feed(K, seed=seed)

    @tf.function(jit_compile=compiled, autograph=False)
    def rewards():
      return feed.arrange(sample, agent.updates_per_call, 1, theta).block.reward

    return rewards().numpy()

  found, other = first_minibatches(3), first_minibatches(4)
  # One member's call is compiled, that of several is not.
  np.testing.assert_array_equal(first_minibatches(3, compiled=True), found)
  assert (found != other).any()
  np.testing.assert_allclose(found.sum(), other.sum(), rtol=1e-5)


def test_acting_with_old_parameters_shows_as_lag():
  agent = ppo_cases.make_agent()
  rng = np.random.default_rng(0)
  block = ppo_cases.acted(
    agent,
    cases.make_theta(agent, 0),
    agent.actor(cases.INFO, K),
    rng,
    ppo_cases.good,
  )
  sample = blocks.Block(*(tf.constant(np.stack([c] * 2)) for c in block))
  same = ppo_cases.arranged(agent, cases.make_theta(agent, 0), sample)
  other = ppo_cases.arranged(agent, cases.make_theta(agent, 1), sample)
  assert np.abs(same.lag).max() < 1e-5 and np.min(other.lag) > 0.01


def test_a_time_limit_is_bootstrapped_and_a_termination_is_not():
  agent = ppo_cases.make_agent()
  theta, sample = cases.make_theta(agent), ppo_cases.make_sample(agent)
  before = np.sort(
    ppo_cases.arranged(agent, theta, sample).returns.numpy().ravel()
  )
  final = sample.final_observation.numpy()
  final[:, :, [0, 2]] += 5.0  # a termination, and a step that is no experience
  same = ppo_cases.arranged(
    agent, theta, sample._replace(final_observation=tf.constant(final))
  )
  np.testing.assert_array_equal(np.sort(same.returns.numpy().ravel()), before)
  final[:, :, 1] += 5.0
  moved = ppo_cases.arranged(
    agent, theta, sample._replace(final_observation=tf.constant(final))
  )
  assert np.abs(np.sort(moved.returns.numpy().ravel()) - before).max() > 0.01


def test_blocks_that_make_no_rollout_are_refused():
  feed = ppo_cases.make_agent().feed(K)
  assert feed.num_blocks(UPDATES) == BLOCKS
  assert feed.queue_size(2) == 2 * BLOCKS
  with pytest.raises(ValueError, match='rollout_steps=24 is no whole number'):
    ppo_cases.make_agent().feed(5).num_blocks(UPDATES)
