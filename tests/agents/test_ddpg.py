"""DDPG, and what it shares with D4PG: its losses and gradients by sums."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents.losses import policy as policy_losses
from tests.agents import ddpg_cases as cases


def slow_loss(agent, theta, theta_hat, transition, importance=None):
  """Critics' loss, mean Q of the policy, errors and targets, one by one."""
  config = agent.config
  online = cases.Slow(agent, theta)
  target = cases.Slow(agent, theta_hat, scale_of=online)
  critics = (0, 1) if config.twin_critics else (0,)
  noise = _smoothing(config, transition)
  losses, values, errors, targets = [], [], [], []
  for i, (o_tm1, a_tm1, r_t, d_t, o_t, w) in enumerate(zip(*transition[:6])):
    if not w:
      continue
    a_t = np.clip(target.mu(o_t) + noise[i], -1, 1)
    bootstrap = min(target.q(o_t, a_t, k) for k in critics)
    y = config.reward_scale * r_t + config.gamma * d_t * bootstrap
    found = [y - online.q(o_tm1, a_tm1, k) for k in critics]
    factor = 1.0 if importance is None else importance[i]
    losses.append(factor * sum(e**2 / 2 for e in found))
    errors.append(np.mean(np.abs(found)))
    targets.append(y)
    values.append(online.q(o_tm1, online.mu(o_tm1)))
  return np.mean(losses), np.mean(values), errors, targets


def _smoothing(config, transition):
  """Noise on the target's actions (Fujimoto et al. 2018, Eq. 14), [B, A].

  The draws are those of the loss.
  """
  o_t, r_t, a_tm1 = transition.o_t, transition.r_t, transition.a_tm1
  if not config.smoothing_sigma:
    return np.zeros_like(a_tm1)
  draws = policy_losses.noise_like(tf.zeros_like(a_tm1), o_t, r_t, a_tm1)
  limit = config.smoothing_limit
  return np.clip(config.smoothing_sigma * draws.numpy(), -limit, limit)


OPTIONS = [
  {},
  {'reward_scale': 0.25},
  {'twin_critics': True},
  {'normalize_observations': True},
  {'twin_critics': True, 'normalize_observations': True, 'prioritized': True},
  {'smoothing_sigma': 0.4, 'smoothing_limit': 0.3},  # some noise is clipped
]


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_the_critics_loss_is_the_sum_of_the_spec(options):
  agent = cases.make_agent(**options)
  theta, theta_hat = cases.make_theta(agent, 0), cases.make_theta(agent, 1)
  transition = cases.make_transitions()
  importance = None
  if agent.config.prioritized:
    importance = np.array([1.0, 0.5, 0.25, 0.7, 0.9], np.float32)
  got = agent.loss(
    cases.variables_of(agent, theta),
    cases.variables_of(agent, theta_hat),
    cases.tensors(transition),
    importance,
  )
  # The metric is what the items say; importance corrects only the gradient.
  loss, value, errors, targets = slow_loss(agent, theta, theta_hat, transition)
  np.testing.assert_allclose(got.metrics['loss'], loss, rtol=1e-4)
  np.testing.assert_allclose(got.metrics['policy_loss'], -value, rtol=1e-4)
  np.testing.assert_allclose(
    got.priorities[:4], np.add(errors, 1e-6), rtol=1e-4
  )
  np.testing.assert_allclose(
    got.metrics['td_error'], np.mean(errors), rtol=1e-4
  )
  np.testing.assert_allclose(
    [got.metrics['target_max'], got.metrics['target_min']],
    [max(targets), min(targets)],
    rtol=1e-4,
  )
  online = cases.Slow(agent, theta)
  q = [online.q(o, a) for o, a in zip(transition.o_tm1, transition.a_tm1)]
  np.testing.assert_allclose(got.metrics['q_mean'], np.mean(q[:4]), rtol=1e-4)
  assert set(got.metrics) == set(agent.metrics)


def test_saturation_is_that_of_the_transitions_that_count():
  agent = cases.make_agent()
  theta = cases.make_theta(agent, 0)
  theta[agent.layout.groups['policy']] *= 1000.0
  transition = cases.make_transitions()
  variables = cases.variables_of(agent, theta)
  got = agent.loss(variables, variables, cases.tensors(transition))
  slow = cases.Slow(agent, theta)
  flat = [
    np.abs(slow.preactivation(o)) > policy_losses.SATURATED
    for o in transition.o_tm1
  ]
  expected = np.mean(flat[:4])  # the fifth is none
  assert 0 < expected < 1 and expected != np.mean(flat)
  np.testing.assert_allclose(got.metrics['policy_saturation'], expected)


def _difference(function, theta, place, step=1e-5):
  """Central differences of `function(theta)` in a slice of theta."""
  found = []
  for i in range(place.start, place.stop):
    ends = []
    for sign in (1, -1):
      moved = theta.astype(float).copy()
      moved[i] += sign * step
      ends.append(function(moved))
    found.append((ends[0] - ends[1]) / (2 * step))
  return np.array(found)


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_each_group_gets_the_gradient_of_its_own_loss_only(options):
  agent = cases.make_agent(**options)
  theta, theta_hat = cases.make_theta(agent, 0), cases.make_theta(agent, 1)
  transition = cases.make_transitions()
  importance = None
  if agent.config.prioritized:
    importance = np.array([1.0, 0.5, 0.25, 0.7, 0.9], np.float32)
  got = cases.gradient_of(agent, theta, theta_hat, transition, importance)
  groups = agent.layout.groups

  def critic_loss(moved):
    return slow_loss(agent, moved, theta_hat, transition, importance)[0]

  def policy_loss(moved):
    return -slow_loss(agent, moved, theta_hat, transition)[1]

  for group, loss in (('critic', critic_loss), ('policy', policy_loss)):
    place = groups[group]
    expected = _difference(loss, theta, place)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(got[place], expected, rtol=1e-3, atol=1e-4)
  # Statistics are no weights.
  assert not got[groups['critic'].stop :].any()


def test_the_gradient_of_q_is_shortened_for_each_sample():
  transition = cases.make_transitions()
  agent, clipped = cases.make_agent(), cases.make_agent(max_dq_da=1e-3)
  theta = cases.make_theta(agent, 0)
  place = agent.layout.groups['policy']
  free, short = (
    cases.gradient_of(a, theta, theta, transition)[place]
    for a in (agent, clipped)
  )
  assert 0 < np.linalg.norm(short) < 0.1 * np.linalg.norm(free)
  wide = cases.make_agent(max_dq_da=1e6)
  np.testing.assert_allclose(
    cases.gradient_of(wide, theta, theta, transition)[place], free, rtol=1e-6
  )


def test_nothing_is_learned_through_the_target_networks():
  agent = cases.make_agent(twin_critics=True)
  theta = cases.variables_of(agent, cases.make_theta(agent, 0))
  theta_hat = cases.variables_of(agent, cases.make_theta(agent, 1))
  with tf.GradientTape() as tape:
    tape.watch([theta, theta_hat])
    loss = agent.loss(
      theta, theta_hat, cases.tensors(cases.make_transitions())
    ).loss
  own, target = tape.gradient(loss, [theta, theta_hat])
  assert all(g is not None for g in own)
  assert target == [None] * len(theta_hat)


def test_a_termination_hides_what_comes_after_and_a_time_limit_does_not():
  agent = cases.make_agent()
  variables = cases.variables_of(agent, cases.make_theta(agent, 0))
  transition = cases.make_transitions()
  elsewhere = transition._replace(o_t=transition.o_t + 1)
  one, two = (
    agent.loss(variables, variables, cases.tensors(t)).priorities
    for t in (transition, elsewhere)
  )
  same = np.isclose(one, two)
  np.testing.assert_array_equal(same[:4], [False, False, True, False])


def test_smoothing_moves_targets_and_only_with_a_sigma():
  transition = cases.make_transitions()
  found = []
  for sigma in (0.0, 0.3):
    agent = cases.make_agent(smoothing_sigma=sigma)
    variables = cases.variables_of(agent, cases.make_theta(agent, 0))
    found += [
      agent.loss(variables, variables, cases.tensors(transition)).priorities
      for _ in range(2)
    ]
  plain, plain_again, noisy, noisy_again = map(np.array, found)
  np.testing.assert_array_equal(plain, plain_again)
  np.testing.assert_array_equal(noisy, noisy_again)
  np.testing.assert_array_equal(
    np.isclose(plain, noisy)[:4], [False, False, True, False]
  )
