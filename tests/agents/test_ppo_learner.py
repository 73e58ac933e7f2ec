"""PPO in a learner: that it learns, and when it stops for a rollout."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import learner
from murmuration.agents.exchange import local as local_exchange
from murmuration.replay import blocks
from tests.agents import ppo_cases
from tests.agents import unroll_cases as cases

T, K = cases.T, cases.K
BLOCKS, UPDATES = ppo_cases.BLOCKS, ppo_cases.UPDATES


class _Feed:
  """The agent's own, with the parameters of the learner."""

  def __init__(self, agent, num_envs):
    self._feed = agent.feed(num_envs)

  def arrange(self, sample, updates, members, theta=None):
    theta = self.learner.theta.read_value() if theta is None else theta
    return self._feed.arrange(sample, updates, members, theta)

  def unpack(self, batch):
    return self._feed.unpack(batch)


def _learner(agent, theta, num_envs=K):
  feed = _Feed(agent, num_envs)
  feed.learner = learner.TFLearner(
    agent,
    np.atleast_2d(theta),
    [agent.config.learning_rate] * len(np.atleast_2d(theta)),
    local_exchange.Local(),
    feed,
    updates_per_call=agent.updates_per_call,
  )
  return feed.learner


@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (
      cases.CONTINUOUS,
      {'normalize_observations': True, 'stack': 2, 'batch_size': 64},
    ),
    (
      cases.DISCRETE,
      {
        'lstm_size': 4,
        'unroll_length': 3,
        'rollout_steps': 48,
        'batch_size': 24,
      },
    ),
  ],
)
def test_what_pays_becomes_likelier(spec, options):
  options = {
    'hidden_sizes': (16,), 'unroll_length': 8, 'rollout_steps': 128,
    'batch_size': 32, 'epochs': 4, 'learning_rate': 5e-3, 'gamma': 0.0,
    'entropy_cost': 0.0, **options,
  }  # fmt: skip
  agent = ppo_cases.make_agent(spec, **options)
  learner = _learner(agent, agent.initial(0), num_envs=16)
  actor, rng = agent.actor(cases.INFO, 16), np.random.default_rng(0)
  returns = []
  for _ in range(25):
    theta = learner.parameters()[0]
    block = ppo_cases.acted(agent, theta, actor, rng, ppo_cases.good)
    result = learner.step(
      blocks.Block(*(tf.constant(column[None]) for column in block))
    )
    returns.append(block.reward.mean())
    assert result.metrics['lag_deviation'][0] < 1e-4
  assert not result.skipped.any() and not result.broken.any()
  assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.2


def test_the_normalizer_moves_once_in_a_rollout_and_counts_each_step_once():
  agent = ppo_cases.make_agent(normalize_observations=True)
  theta, sample = cases.make_theta(agent), ppo_cases.make_sample(agent)
  names = [v.name for v in agent.layout.variables]
  batch = ppo_cases.arranged(agent, theta, sample)
  now = dict(zip(names, agent.layout.unpack(theta)))
  for update in range(UPDATES):
    found = cases.loss_of(agent, theta, ppo_cases.one(batch, update)).statistics
    assert set(found) == {n for n in names if n.startswith('normalizer')}
    moved = [not np.array_equal(found[name], now[name]) for name in found]
    assert all(moved) if update == UPDATES - 1 else not any(moved)
  learner = _learner(agent, agent.initial(0))
  learner.step(sample)
  after = dict(zip(names, agent.layout.unpack(learner.parameters()[0])))
  valid = sample.valid.numpy()
  seen = sample.observation[:, :T].numpy()[valid]
  np.testing.assert_allclose(
    after['normalizer/memory'], valid.sum() / 1e6, rtol=1e-4
  )
  np.testing.assert_allclose(
    after['normalizer/mean'], seen.mean(axis=0), rtol=1e-3, atol=1e-4
  )


@pytest.mark.long
@pytest.mark.parametrize('compiled', [False, True])
def test_far_from_the_policy_that_acted_nothing_moves(compiled):
  free, held = ppo_cases.make_agent(), ppo_cases.make_agent(target_kl=0.01)
  theta, sample = cases.make_theta(free), ppo_cases.make_sample(free)
  minibatch = ppo_cases.one(ppo_cases.arranged(free, theta, sample), 0)
  assert cases.loss_of(free, theta, minibatch).metrics['kl'] > 0.015
  for agent in (free, held):
    agent.compiled = compiled
    learner = _learner(agent, theta)
    saved = learner.save()
    # Momentum of earlier rollouts, which a gradient of zero would not end.
    saved['slot_0'][...], saved['slot_1'][...] = 0.1, 0.01
    learner.restore(saved)
    result = learner.step(sample)
    after = learner.save()
    for name in ('theta', 'slot_0', 'slot_1', 'steps'):
      same = np.array_equal(saved[name], after[name])
      assert same == (agent is held), name
    assert after['updates'] == UPDATES and not result.skipped.any()
    assert result.metrics['stopped_updates'] == (agent is held)


@pytest.mark.long
def test_from_the_first_update_too_far_on_the_rest_of_a_rollout_is_left():
  # The rate is too small to move the policy: only one step of the rollout is
  # far from it, and so each epoch's minibatch that has this step.
  agent = ppo_cases.make_agent(target_kl=0.01, learning_rate=1e-8, epochs=2)
  theta, rng = cases.make_theta(agent), np.random.default_rng(0)
  actor = agent.actor(cases.INFO, K)
  rollout = [
    ppo_cases.acted(agent, theta, actor, rng, ppo_cases.good)
    for _ in range(BLOCKS)
  ]
  rollout[0].behaviour[1, 1] -= 3.0
  sample = blocks.Block(*(tf.constant(np.stack(c)) for c in zip(*rollout)))
  batch = ppo_cases.arranged(agent, theta, sample)
  far = [
    float(
      cases.loss_of(agent, theta, ppo_cases.one(batch, update)).metrics['kl']
    )
    > 0.015
    for update in range(UPDATES)
  ]
  assert sum(far) == 2 and far.index(True) > 0
  learner = _learner(agent, theta)
  result = learner.step(sample)
  moved = far.index(True)
  assert learner.save()['steps'] == moved
  np.testing.assert_allclose(
    result.metrics['stopped_updates'], 1 - moved / UPDATES, rtol=1e-6
  )
  # The next rollout starts with a free hand.
  learner.step(sample)
  assert learner.save()['steps'] == 2 * moved
