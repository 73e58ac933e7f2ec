"""How IMPALA acts: alone and together, with memory, greedily."""

import numpy as np
import pytest
from scipy import special

from tests.agents import unroll_cases as cases

T, K = cases.T, cases.K


@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (cases.DISCRETE, {}),
    (cases.DISCRETE, {'lstm_size': 6}),
    (cases.CONTINUOUS, {'stack': 4, 'shared_torso': False}),
    (cases.CONTINUOUS, {'lstm_size': 6, 'stack': 2, 'tanh_mean': True}),
    (cases.DISCRETE, {'normalize_observations': True}),
    (cases.CONTINUOUS, {'free_sigma': True, 'shared_torso': False}),
    (cases.CONTINUOUS, {'free_sigma': True, 'lstm_size': 6}),
  ],
)
def test_without_lag_every_ratio_is_one(spec, options):
  """What the actor said of its actions is what the learner finds."""
  agent = cases.make_impala(spec, **options)
  theta = cases.make_theta(agent)
  actor = agent.actor(cases.INFO, K)
  rng = np.random.default_rng(3)
  observation = rng.normal(size=(K, 2)).astype(np.float32)
  for _ in range(3):
    block = agent.block_layout(K).zeros()
    block.discount[...] = 1.0
    for t in range(T):
      block.observation[t] = observation
      block.action[t] = actor.act(theta, observation, 0, rng)
      block.behaviour[t] = actor.behaviour
      if t == 0:
        block.core[...] = actor.core
      block.last[t] = rng.random(K) < 0.3
      actor.ended(block.last[t])
      observation = rng.normal(size=(K, 2)).astype(np.float32)
    block.observation[T] = observation
    got = cases.loss_of(agent, theta, cases.batch_of(block))
    assert got.metrics['rho_deviation'] < 1e-3
    np.testing.assert_allclose(got.metrics['rho_mean'], 1.0, atol=1e-4)
  assert block.last.any() and not block.last.all()


def test_an_environments_actions_do_not_depend_on_the_others():
  agent = cases.make_impala(lstm_size=6, stack=2)
  theta = cases.make_theta(agent)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(30, 8, 2)).astype(np.float32)
  last = rng.random((30, 8)) < 0.2
  together, alone = agent.actor(cases.INFO, 8), agent.actor(cases.INFO, 1)
  for t in range(30):
    together.act(theta, x[t], 0, rng)
    alone.act(theta, x[t, 3:4], 0, rng)
    np.testing.assert_allclose(
      together.core[3:4], alone.core, rtol=1e-5, atol=1e-6
    )
    together.ended(last[t])
    alone.ended(last[t, 3:4])


def test_new_parameters_act_at_once_and_old_cores_stay():
  agent = cases.make_impala(lstm_size=6)
  actor = agent.actor(cases.INFO, K)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(K, 2)).astype(np.float32)
  actor.act(cases.make_theta(agent, 0), x, 0, rng)
  actor.act(cases.make_theta(agent, 1), x, 0, rng)
  first = actor.behaviour
  other = agent.actor(cases.INFO, K)
  rng = np.random.default_rng(0)
  other.act(cases.make_theta(agent, 0), x, 0, rng)
  other.act(cases.make_theta(agent, 0), x, 0, rng)
  assert np.abs(first - other.behaviour).max() > 1e-3
  np.testing.assert_array_equal(actor.core, other.core)


def test_actions_are_drawn_from_the_policy():
  agent = cases.make_impala()
  theta = cases.make_theta(agent)
  actor = agent.actor(cases.INFO, 5000)
  x = np.zeros((5000, 2), np.float32)
  actions = actor.act(theta, x, 0, np.random.default_rng(0))
  assert actions.shape == (5000,) and actions.dtype == np.int32
  outputs, _ = cases.network(agent, theta, np.zeros(2))
  share = np.bincount(actions, minlength=3) / 5000
  np.testing.assert_allclose(share, special.softmax(outputs), atol=0.03)
  with pytest.raises(NotImplementedError, match='let its `actor` act'):
    agent.act(theta[None], x[None], 0, np.random.default_rng(0))


def test_the_greedy_policy_takes_the_likeliest_action():
  agent = cases.make_impala()
  theta = cases.make_theta(agent)
  x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
  policy = agent.greedy(theta)
  expected = [cases.network(agent, theta, o)[0].argmax() for o in x]
  np.testing.assert_array_equal(policy(x), expected)
  theta *= -1.0  # the learner goes on
  np.testing.assert_array_equal(policy(x), expected)
  continuous = cases.make_impala(cases.CONTINUOUS)
  theta = cases.make_theta(continuous)
  means = [cases.network(continuous, theta, o)[0][:2] for o in x]
  np.testing.assert_allclose(
    continuous.greedy(theta)(x), means, rtol=1e-4, atol=1e-5
  )


def test_a_greedy_policy_forgets_when_it_is_told_to():
  agent = cases.make_impala(cases.CONTINUOUS, lstm_size=6, stack=2)
  x = np.random.default_rng(0).normal(size=(3, K, 2)).astype(np.float32)
  policy = agent.greedy(cases.make_theta(agent))
  first = policy(x[0])
  assert np.abs(policy(x[0]) - first).max() > 1e-4, 'it must remember'
  policy.ended(np.array([True, False, False]))
  again = policy(x[0])
  np.testing.assert_allclose(again[0], first[0], rtol=1e-5)
  assert np.abs(again[1:] - first[1:]).max() > 1e-4
  policy.reset()
  np.testing.assert_allclose(policy(x[0][:2]), first[:2], rtol=1e-5)
