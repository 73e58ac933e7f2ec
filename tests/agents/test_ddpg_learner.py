"""DDPG in a learner: rates, delays, statistics, and the pull of a swarm."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import local as local_exchange
from murmuration.agents.exchange import pull as pull_exchange
from tests.agents import ddpg_cases as cases

TD3 = {'twin_critics': True, 'policy_delay': 2, 'smoothing_sigma': 0.2}


def _learner(agent, members=1, rate=1e-3):
  theta = np.stack([cases.make_theta(agent, seed) for seed in range(members)])
  return learner_lib.TFLearner(
    agent,
    theta,
    [rate] * members,
    local_exchange.Local(),
    feeds.Transitions(cases.LAYOUT, agent.batch_size),
  )


def _packed(agent):
  return tf.constant(
    cases.LAYOUT.pack(*cases.make_transitions(agent.batch_size)[:6])
  )


@pytest.mark.parametrize(
  'options',
  [{}, {**TD3, 'normalize_observations': True, 'max_dq_da': 1.0}],
  ids=str,
)
def test_a_population_learns_what_its_members_would_learn_alone(options):
  agent = cases.make_agent(batch_size=5, **options)
  learner = _learner(agent, members=3)
  packed = np.stack(
    [cases.LAYOUT.pack(*cases.make_transitions(5, p)[:6]) for p in range(3)]
  )
  got = learner.gradient(tf.constant(packed))
  for p, theta in enumerate(learner.parameters()):
    transition = cases.make_transitions(5, p)
    np.testing.assert_allclose(
      got.vector[p],
      cases.gradient_of(agent, theta, theta, transition),
      rtol=1e-3,
      atol=1e-5,
    )
    variables = cases.variables_of(agent, theta)
    alone = agent.loss(variables, variables, cases.tensors(transition))
    for name, value in {**alone.metrics, **alone.statistics}.items():
      rows = {**got.metrics, **got.statistics}[name]
      np.testing.assert_allclose(rows[p], value, rtol=1e-4, atol=1e-6)
  assert bool(got.statistics) == agent.config.normalize_observations


def test_policy_and_critic_learn_at_rates_of_their_own():
  # A step of SGD is the gradient times the rate.
  agent = cases.make_agent(
    optimizer='sgd',
    policy_learning_rate=0.02,
    critic_learning_rate=0.1,
    batch_size=5,
  )
  learner = _learner(agent, rate=agent.learning_rate)
  before = learner.parameters()[0]
  learner.step(_packed(agent))
  step = learner.parameters()[0] - before
  gradient = cases.gradient_of(agent, before, before, cases.make_transitions())
  for group, expected in (('policy', 0.02), ('critic', 0.1)):
    place = agent.layout.groups[group]
    np.testing.assert_allclose(
      step[place], -expected * gradient[place], rtol=1e-3, atol=1e-6
    )


def test_a_learner_that_gives_up_names_settings_that_there_are():
  agent = cases.make_agent(batch_size=5)
  learner = _learner(agent)
  for setting in agent.rate_settings:
    section, name = setting.split('.')
    assert section == 'agent' and hasattr(agent.config, name)
  packed = tf.fill(_packed(agent).shape, float('nan'))
  with pytest.raises(
    learner_lib.LearnerFault,
    match='agent.policy_learning_rate and agent.critic_learning_rate, or',
  ):
    for _ in range(learner_lib.MAX_SKIPPED_IN_A_ROW):
      learner.step(packed)


def test_the_rate_is_the_critics_and_the_policys_keeps_its_ratio_to_it():
  agent = cases.make_agent(policy_learning_rate=1e-4, critic_learning_rate=1e-3)
  assert agent.learning_rate == 1e-3
  scale = agent.learning_rate_scale
  np.testing.assert_allclose(scale[agent.layout.groups['policy']], 0.1)
  np.testing.assert_allclose(scale[agent.layout.groups['critic']], 1.0)


def test_the_policy_moves_at_every_second_update_only():
  agent = cases.make_agent(policy_delay=2, batch_size=5)
  learner = _learner(agent)
  moved = []
  for _ in range(4):
    before = learner.parameters()[0]
    learner.step(_packed(agent))
    step = learner.parameters()[0] != before
    groups = agent.layout.groups
    moved.append((step[groups['policy']].any(), step[groups['critic']].any()))
  assert moved == [(False, True), (True, True)] * 2


def test_a_policy_that_moves_less_often_has_an_adam_of_its_own():
  agent = cases.make_agent(policy_delay=2, batch_size=5)
  learner = _learner(agent, rate=1e-3)
  groups, t = agent.layout.groups, {'policy': 0, 'critic': 0}
  m, v = np.zeros(agent.layout.size), np.zeros(agent.layout.size)
  for update in range(6):
    before, target = learner.save()['theta'][0], learner.save()['target'][0]
    learner.step(_packed(agent))
    step = learner.parameters()[0] - before
    g = cases.gradient_of(agent, before, target, cases.make_transitions())
    for group, rate in (('policy', 1e-4), ('critic', 1e-3)):
      place = groups[group]
      if group == 'policy' and update % 2 == 0:
        assert not step[place].any()
        continue
      # Kingma and Ba 2015, Algorithm 1, for each group alone.
      t[group] += 1
      m[place] += (1 - 0.9) * (g[place] - m[place])
      v[place] += (1 - 0.999) * (g[place] ** 2 - v[place])
      m_hat = m[place] / (1 - 0.9 ** t[group])
      v_hat = v[place] / (1 - 0.999 ** t[group])
      expected = -rate * m_hat / (np.sqrt(v_hat) + 1e-8)
      assert np.abs(expected).max() > 0.5 * rate
      np.testing.assert_allclose(step[place], expected, rtol=0.02, atol=1e-6)
  np.testing.assert_array_equal(learner.save()['steps'], [[6, 3]])


def test_statistics_reach_theta_and_the_policy_that_acts_uses_them():
  agent = cases.make_agent(
    normalize_observations=True, prioritized=True, batch_size=5
  )
  learner = _learner(agent)
  theta = agent.initial(0)
  learner.set_member(0, theta)
  result = learner.step(_packed(agent), tf.fill([5], 0.2))
  names = [v.name for v in agent.layout.variables]
  after = dict(zip(names, agent.layout.unpack(learner.parameters()[0])))
  seen = cases.make_transitions().o_tm1[:4].reshape(4, 4)
  np.testing.assert_allclose(
    after['normalizer/mean'], seen.mean(axis=0), rtol=1e-4, atol=1e-5
  )
  np.testing.assert_allclose(
    after['normalizer/variance'], seen.var(axis=0), rtol=1e-4
  )
  # The place without a transition has the largest error, and does not count.
  assert result.priorities[4] > result.priorities[:4].max() > 1
  np.testing.assert_allclose(
    after['priority/maximum'], [result.priorities[:4].max()], rtol=1e-6
  )
  acting = learner.parameters()[0]
  np.testing.assert_allclose(
    agent.greedy(acting)(cases.make_transitions().o_tm1),
    [cases.Slow(agent, acting).mu(o) for o in cases.make_transitions().o_tm1],
    rtol=1e-4,
    atol=1e-6,
  )


def _pulled(agent, star, c):
  """What one update makes of theta, with theta_star = theta + star."""
  exchange = pull_exchange.Pull(c_max=None)
  learner = learner_lib.TFLearner(
    agent,
    cases.make_theta(agent, 0)[None],
    [1e-3],
    exchange,
    feeds.Transitions(cases.LAYOUT, agent.batch_size),
    seed=5,
  )
  exchange.set_star(cases.make_theta(agent, 0) + star, c)
  learner.step(_packed(agent))
  return learner.parameters()[0]


def test_theta_star_pulls_policy_and_critic_but_no_statistics():
  agent = cases.make_agent(
    batch_size=5, policy_delay=2, normalize_observations=True
  )
  groups = agent.layout.groups
  alone = _pulled(agent, star=1.0, c=0.0)
  moved = _pulled(agent, star=1.0, c=0.5) - alone
  # A draw r for each network, which goes the same part of the way whole; the
  # policy also in an update that its own gradient sits out.
  draws = [moved[groups[group]].mean() for group in ('policy', 'critic')]
  assert 0 < min(draws) < max(draws) < 0.5
  for group, r in zip(('policy', 'critic'), draws):
    np.testing.assert_allclose(moved[groups[group]], r, rtol=1e-3)
  np.testing.assert_array_equal(moved[groups['normalizer']], 0.0)
