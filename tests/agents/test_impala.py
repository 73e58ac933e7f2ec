"""IMPALA: its loss by slow sums, and what it learns from."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import local as local_exchange
from murmuration.agents.unroll import unrolls
from murmuration.replay import blocks
from tests.agents import unroll_cases as cases

T, K = cases.T, cases.K


def slow_loss(agent, theta, block):
  """The loss of docs/agents/impala.md, one sequence and one step at a time."""
  config = agent.config
  policy_losses, squares, entropies = [], [], []
  for k in range(block.reward.shape[1]):
    after = 0.0  # A_{t+1}
    for t in reversed(range(T)):
      outputs, value = cases.network(agent, theta, block.observation[t, k])
      log_pi, entropy = cases.log_pi_and_entropy(
        agent, outputs, block.action[t, k]
      )
      if not block.valid[t, k]:
        after = 0.0
        continue
      terminated = block.last[t, k] and block.discount[t, k] == 0
      truncated = block.last[t, k] and not terminated
      arrival = block.observation[t + 1, k]
      if truncated:
        earlier = block.last[:t, k] & (block.discount[:t, k] > 0)
        number = np.sum(earlier & block.valid[:t, k])
        arrival = block.final_observation[number, k]
      following = cases.network(agent, theta, arrival)[1]
      rho = np.exp(log_pi - block.behaviour[t, k, 0])
      bars = config.rho_bar, config.c_bar, config.pg_rho_bar
      if config.correction == 'none':
        rho, bars = 1.0, (1.0,) * 3
      of_delta, c, of_policy = (min(bar, rho) for bar in bars)
      reward = config.reward_scale * block.reward[t, k]
      g = 0.0 if terminated else config.gamma
      after = 0.0 if block.last[t, k] else after
      q = reward + g * (following + after)
      delta = of_delta * (reward + g * following - value)
      after = delta + g * config.trace_lambda * c * after
      policy_losses.append(-of_policy * (q - value) * log_pi)
      squares.append(0.5 * after**2)
      entropies.append(entropy)
  return (
    np.mean(policy_losses)
    + config.baseline_cost * np.mean(squares)
    - config.entropy_cost * np.mean(entropies)
  )


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'trace_lambda': 0.7, 'gamma': 0.9},
    {'reward_scale': 0.3, 'baseline_cost': 0.8},
    {'correction': 'none', 'entropy_cost': 0.2},
    {'rho_bar': 1.6, 'c_bar': 0.7, 'pg_rho_bar': 1.2},  # each in its place
    {'free_sigma': True},  # for continuous actions
  ],
)
@pytest.mark.parametrize(
  'spec', [cases.DISCRETE, cases.CONTINUOUS], ids=lambda s: s.name
)
def test_the_loss_is_that_of_one_sequence_and_step_at_a_time(spec, options):
  agent = cases.make_impala(spec, **options)
  theta = cases.make_theta(agent)
  columns = [cases.make_block(agent, seed) for seed in (0, 1)]
  got = cases.loss_of(agent, theta, cases.batch_of(*columns))
  both = columns[0]._replace(
    **{
      name: np.concatenate([getattr(c, name) for c in columns], axis)
      for name, axis in blocks.ENVIRONMENT_AXIS.items()
    }
  )
  np.testing.assert_allclose(got.loss, slow_loss(agent, theta, both), rtol=1e-4)
  assert set(got.metrics) == set(agent.metrics)
  assert got.priorities is None


def test_lag_and_values_are_logged_as_they_are_not_clipped_nor_scaled():
  agent = cases.make_impala(reward_scale=0.3)
  theta, block = cases.make_theta(agent), cases.make_block(agent)
  rhos, values = [], []
  for t, k in zip(*np.nonzero(block.valid)):
    outputs, value = cases.network(agent, theta, block.observation[t, k])
    log_pi, _ = cases.log_pi_and_entropy(agent, outputs, block.action[t, k])
    rhos.append(np.exp(log_pi - block.behaviour[t, k, 0]))
    values.append(value / 0.3)
  assert min(rhos) < 1 < max(rhos)
  found = cases.loss_of(agent, theta, cases.batch_of(block)).metrics
  for name, wanted in (
    ('rho_mean', np.mean(rhos)),
    ('rho_deviation', np.abs(np.array(rhos) - 1).max()),
    ('value_mean', np.mean(values)),
  ):
    np.testing.assert_allclose(found[name], wanted, rtol=1e-4, err_msg=name)


def test_a_ratio_that_float32_cannot_hold_is_e_to_the_20():
  agent = cases.make_impala(rho_bar=None, c_bar=None, pg_rho_bar=None)
  theta, block = cases.make_theta(agent), cases.make_block(agent)
  valid = np.argwhere(block.valid)
  t, k = valid[-1]
  block.behaviour[t, k, 0] = -200.0  # e^200 is infinite in float32
  got = cases.loss_of(agent, theta, cases.batch_of(block))
  # All other ratios are near 1.
  share = got.metrics['rho_mean'] * len(valid) / np.exp(20)
  np.testing.assert_allclose(share, 1.0, rtol=1e-4)
  assert np.isfinite(got.loss)


def test_a_gaussian_policy_says_how_far_it_explores():
  agent = cases.make_impala(cases.CONTINUOUS)
  theta, block = cases.make_theta(agent), cases.make_block(agent)
  raw = [
    cases.network(agent, theta, block.observation[t, k])[0][2:]
    for t, k in zip(*np.nonzero(block.valid))
  ]
  got = cases.loss_of(agent, theta, cases.batch_of(block)).metrics
  sigma = np.minimum(np.log1p(np.exp(raw)) + agent.config.sigma_min, 2.0)
  np.testing.assert_allclose(got['sigma'], sigma.mean(), rtol=1e-5)
  assert agent.remarks({'sigma': 0.03}) == []
  # Of a batch without experience, and of an agent without a sigma.
  assert agent.remarks({'sigma': 0.0}) == cases.make_impala().remarks({}) == []
  (remark,) = agent.remarks({'sigma': 0.012})
  assert '0.0120' in remark and 'agent.entropy_cost' in remark


def test_normalised_advantages_do_not_scale_with_the_reward():
  theta = cases.make_theta(cases.make_impala())
  losses = []
  for scale in (1.0, 10.0):
    agent = cases.make_impala(
      normalize_advantages=True, baseline_cost=0.0, entropy_cost=0.0
    )
    block = cases.make_block(agent)
    block.last[...] = True
    block.discount[...] = 0.0
    # Without values, advantages are rewards.
    values = agent.layout.unpack(theta)
    values[2][-1] = 0.0
    values[3][:, -1] = 0.0
    block.reward[...] *= scale
    losses.append(cases.loss_of(agent, theta, cases.batch_of(block)).loss)
  np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_advantages_are_normalised_under_the_policy_and_then_weighted():
  agent = cases.make_impala(
    cases.CONTINUOUS,
    normalize_advantages=True,
    baseline_cost=0.0,
    entropy_cost=0.0,
    trace_lambda=0.0,
  )
  theta, block = cases.make_theta(agent), cases.make_block(agent)
  block.last[...] = True
  block.discount[...] = 0.0
  block.valid[...] = True
  weights, advantages, log_pis = (np.zeros(block.reward.shape) for _ in '123')
  for t, k in np.ndindex(*block.reward.shape):
    head, value = cases.network(agent, theta, block.observation[t, k])
    log_pi, _ = cases.log_pi_and_entropy(agent, head, block.action[t, k])
    log_pis[t, k], advantages[t, k] = log_pi, block.reward[t, k] - value
    weights[t, k] = min(1.0, np.exp(log_pi - block.behaviour[t, k, 0]))
  mean = np.average(advantages, weights=weights)
  deviation = np.sqrt(np.average((advantages - mean) ** 2, weights=weights))
  want = -np.mean(weights * (advantages - mean) / deviation * log_pis)
  got = cases.loss_of(agent, theta, cases.batch_of(block)).loss
  np.testing.assert_allclose(got, want, rtol=1e-4)
  # What the policy would not do any more does not move it, however bad it was.
  block.behaviour[0, 0, 0] = 60.0
  losses = []
  for reward in (-1e3, 1e3):
    block.reward[0, 0] = reward
    losses.append(cases.loss_of(agent, theta, cases.batch_of(block)).loss)
  np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def _gradient(agent, theta, batch):
  learner = learner_lib.TFLearner(
    agent,
    theta[None],
    [1e-3],
    local_exchange.Local(),
    unrolls.Unrolls(agent.batch_size, batch.reward.shape[-1]),
  )
  arranged = tf.nest.map_structure(lambda x: x[None], batch)
  return learner.gradient(arranged).vector[0].numpy()


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'lstm_size': 4},
    {'stack': 3, 'normalize_observations': True, 'shared_torso': False},
  ],
)
def test_nothing_is_learned_from_what_is_no_experience(options):
  agent = cases.make_impala(**options)
  theta = cases.make_theta(agent)
  block = cases.make_block(agent)
  # Environment 1 had a time limit before: its true end is not this one's.
  block.valid[3, :2] = False
  block.last[3, :2] = True
  expected = _gradient(agent, theta, cases.batch_of(block))
  assert np.abs(expected).max() > 0
  # The steps that are masked, the arrival after them, an end nobody reached.
  for t, k in ((2, 2), (3, 0), (3, 1)):
    block.reward[t, k] = 1e3
    block.action[t, k] = 0
    block.behaviour[t, k] = -5.0
  block.observation[3, 1] = block.observation[T, :2] = 50.0
  block.final_observation[:, [0, 2]] = 50.0
  got = _gradient(agent, theta, cases.batch_of(block))
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_a_sequence_with_behaviour_that_is_not_finite_is_left_out():
  agent = cases.make_impala()
  theta = cases.make_theta(agent)
  block = cases.make_block(agent)
  block.valid[:, 1] = False
  expected = _gradient(agent, theta, cases.batch_of(block))
  block.valid[:, 1] = True
  block.behaviour[2, 1] = np.nan
  got = cases.loss_of(agent, theta, cases.batch_of(block))
  assert got.metrics['dropped_sequences'] == 1
  np.testing.assert_allclose(
    _gradient(agent, theta, cases.batch_of(block)),
    expected,
    rtol=1e-4,
    atol=1e-6,
  )


def test_a_time_limit_is_bootstrapped_from_its_true_end():
  agent = cases.make_impala()
  theta = cases.make_theta(agent)
  block = cases.make_block(agent)
  before = cases.loss_of(agent, theta, cases.batch_of(block)).loss
  block.final_observation[0, 1] += 1.0
  assert (
    abs(cases.loss_of(agent, theta, cases.batch_of(block)).loss - before) > 1e-4
  )


def test_members_learn_as_they_would_alone():
  agent = cases.make_impala(stack=2, shared_torso=False)
  thetas = np.stack([cases.make_theta(agent, seed) for seed in range(2)])
  columns = [cases.make_block(agent, seed) for seed in range(2)]
  both = columns[0]._replace(
    **{
      name: np.concatenate([getattr(c, name) for c in columns], axis)
      for name, axis in blocks.ENVIRONMENT_AXIS.items()
    }
  )

  def learn(theta, block, num_envs):
    learner = learner_lib.TFLearner(
      agent,
      theta,
      [1e-2] * len(theta),
      local_exchange.Local(),
      unrolls.Unrolls(K, num_envs),
    )
    learner.step(cases.batch_of(block))
    return learner.parameters()

  together = learn(thetas, both, 2 * K)
  for member, block in enumerate(columns):
    alone = learn(thetas[member][None], block, K)[0]
    np.testing.assert_allclose(together[member], alone, rtol=1e-4, atol=1e-5)


def test_the_normalizer_follows_valid_observations():
  agent = cases.make_impala(normalize_observations=True)
  block = cases.make_block(agent)
  statistics = cases.loss_of(
    agent, agent.initial(0), cases.batch_of(block)
  ).statistics
  seen = block.observation[:T][block.valid]
  np.testing.assert_allclose(
    statistics['normalizer/mean'], seen.mean(axis=0), rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(
    statistics['normalizer/variance'], seen.var(axis=0), rtol=1e-4
  )
