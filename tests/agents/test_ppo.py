"""PPO: its loss by slow sums."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.replay import blocks
from tests.agents import ppo_cases
from tests.agents import unroll_cases as cases

T, K = cases.T, cases.K
BLOCKS, STEPS, UPDATES = ppo_cases.BLOCKS, ppo_cases.STEPS, ppo_cases.UPDATES


def slow_loss(agent, theta, steps):
  """L of docs/agents/ppo.md, and the metrics that are its parts."""
  config = agent.config
  advantages = np.array([step['advantage'] for step in steps])
  if config.normalize_advantages:
    advantages = (advantages - advantages.mean()) / advantages.std()
  each = []
  for step, advantage in zip(steps, advantages):
    outputs, value = cases.network(agent, theta, step['observation'])
    log_pi, entropy = cases.log_pi_and_entropy(agent, outputs, step['action'])
    rho = np.exp(log_pi - step['log_mu'])
    near = min(max(rho, 1 - config.clip), 1 + config.clip)
    ret = step['value'] + step['advantage']
    square = (value - ret) ** 2
    if config.value_clip is not None:
      limit = config.value_clip
      moved = np.clip(value - step['value'], -limit, limit)
      square = max(square, (step['value'] + moved - ret) ** 2)
    policy = -min(rho * advantage, near * advantage)
    costs = config.value_cost * square - config.entropy_cost * entropy
    each.append(
      {
        'loss': policy + costs,
        'policy_loss': policy,
        'value_loss': square,
        'entropy': entropy,
        'value_mean': value / config.reward_scale,
        'kl': rho - 1 - np.log(rho),
        'clip_fraction': abs(rho - 1) > config.clip,
      }
    )
  return {name: np.mean([one[name] for one in each]) for name in each[0]}


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'normalize_advantages': False, 'gamma': 0.9, 'gae_lambda': 0.7},
    {'reward_scale': 0.3, 'clip': 0.1, 'value_cost': 0.8},
    {'value_clip': 0.05, 'entropy_cost': 0.2},
  ],
)
@pytest.mark.parametrize(
  'spec', [cases.DISCRETE, cases.CONTINUOUS], ids=lambda s: s.name
)
def test_the_loss_is_that_of_one_step_at_a_time(spec, options):
  agent = ppo_cases.make_agent(spec, batch_size=STEPS, epochs=1, **options)
  before, theta = cases.make_theta(agent, 0), cases.make_theta(agent, 1)
  sample = ppo_cases.make_sample(agent)
  minibatch = ppo_cases.one(ppo_cases.arranged(agent, before, sample), 0)
  got = cases.loss_of(agent, theta, minibatch)
  steps = ppo_cases.slow_steps(agent, before, sample)
  assert len(steps) == STEPS - BLOCKS
  expected = slow_loss(agent, theta, steps)
  np.testing.assert_allclose(got.loss, expected['loss'], rtol=1e-4)
  for name, wanted in expected.items():
    np.testing.assert_allclose(
      got.metrics[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name
    )
  # The learner adds the share of updates that moved nothing.
  assert {*got.metrics, 'stopped_updates'} == set(agent.metrics)
  assert got.metrics['dropped_steps'] == BLOCKS
  assert 0 < got.metrics['clip_fraction'] < 1
  advantages, old = (
    np.array([step[name] for step in steps]) for name in ('advantage', 'value')
  )
  np.testing.assert_allclose(
    got.metrics['explained_variance'],
    1 - advantages.var() / (old + advantages).var(),
    rtol=1e-3,
    atol=1e-4,
  )


@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (cases.DISCRETE, {}),
    (cases.CONTINUOUS, {'normalize_observations': True}),
    (cases.CONTINUOUS, {'stack': 3, 'batch_size': 2 * T}),
    (cases.DISCRETE, {'lstm_size': 4, 'batch_size': 2 * T}),
  ],
)
def test_before_it_moves_the_policy_of_a_minibatch_is_the_one_that_acted(
  spec, options
):
  agent = ppo_cases.make_agent(spec, **options)
  theta = cases.make_theta(agent)
  actor, rng = agent.actor(cases.INFO, K), np.random.default_rng(0)
  sequence = [
    ppo_cases.acted(agent, theta, actor, rng, ppo_cases.good) for _ in range(3)
  ]
  # Not the first block: episodes are under way, and others end within.
  columns = zip(*sequence[1:])
  sample = blocks.Block(*(tf.constant(np.stack(c)) for c in columns))
  assert sample.last.numpy()[:, :-1].any()
  batch = ppo_cases.arranged(agent, theta, sample)
  for update in range(UPDATES):
    found = cases.loss_of(agent, theta, ppo_cases.one(batch, update)).metrics
    assert abs(found['kl']) < 1e-5 and found['clip_fraction'] == 0


def test_a_sequence_with_behaviour_that_is_not_finite_is_left_out():
  agent = ppo_cases.make_agent(batch_size=STEPS)
  theta, sample = cases.make_theta(agent), ppo_cases.make_sample(agent)
  valid = sample.valid.numpy()
  valid[0, :, 1] = False
  expected = cases.loss_of(
    agent,
    theta,
    ppo_cases.one(
      ppo_cases.arranged(agent, theta, sample._replace(valid=valid)), 0
    ),
  )
  behaviour = sample.behaviour.numpy()
  behaviour[0, 2, 1] = np.nan
  got = cases.loss_of(
    agent,
    theta,
    ppo_cases.one(
      ppo_cases.arranged(agent, theta, sample._replace(behaviour=behaviour)), 0
    ),
  )
  assert got.metrics['dropped_steps'] == BLOCKS + T
  np.testing.assert_allclose(got.loss, expected.loss, rtol=1e-5)
