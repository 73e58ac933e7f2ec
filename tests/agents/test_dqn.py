"""DQN: its loss by the sums of the paper, and its networks."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.replay import packing
from tests.agents import dqn_cases as cases


def slow_loss(agent, theta, theta_hat, transition, importance=(1,) * 5):
  """Equation 5 of docs/agents/pso_dqn.md, one transition at a time."""
  config = agent.config
  losses, errors, targets = [], [], []
  for o_tm1, a_tm1, r_t, d_t, o_t, weight, w in zip(
    *transition[:6], importance
  ):
    if not weight:
      continue
    q_t = cases.slow_q(agent, theta_hat, o_t)
    selector = cases.slow_q(agent, theta, o_t) if config.double else q_t
    bootstrap = q_t[np.argmax(selector)]
    y = config.reward_scale * r_t + config.gamma * d_t * bootstrap
    error = y - cases.slow_q(agent, theta, o_tm1)[a_tm1]
    if config.loss == 'huber' and abs(error) > 1:
      losses.append(w * (abs(error) - 0.5))
    else:
      losses.append(w * error**2 / 2)
    errors.append(abs(error))
    targets.append(y)
  return np.mean(losses), np.mean(errors), max(targets)


@pytest.mark.parametrize('reward_scale', [1.0, 0.25])
@pytest.mark.parametrize('loss', ['huber', 'squared'])
@pytest.mark.parametrize('double', [False, True])
def test_the_loss_is_equation_5(double, loss, reward_scale):
  agent = cases.make_agent(
    gamma=cases.GAMMA, double=double, loss=loss, reward_scale=reward_scale
  )
  theta, theta_hat = agent.initial(0), agent.initial(1)
  transition = cases.make_transitions()
  selected = [
    (
      cases.slow_q(agent, theta, o).argmax(),
      cases.slow_q(agent, theta_hat, o).argmax(),
    )
    for o in transition.o_t[:2]
  ]
  assert any(a != b for a, b in selected), 'double must make a difference'
  got = agent.loss(
    cases.variables_of(agent, theta),
    cases.variables_of(agent, theta_hat),
    packing.Transition(*map(tf.constant, transition)),
  )
  mean, error, target = slow_loss(agent, theta, theta_hat, transition)
  np.testing.assert_allclose(got.loss, mean, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['loss'], mean, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['td_error'], error, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['target_max'], target, rtol=1e-5)
  assert set(got.metrics) == set(agent.metrics)


def test_importance_weighs_errors_but_neither_priorities_nor_their_number():
  # docs/agents/apex_dqn.md: (1/B) sum_i w_i h(delta_i).
  agent = cases.make_agent(gamma=cases.GAMMA)
  theta, theta_hat = agent.initial(0), agent.initial(1)
  transition = cases.make_transitions()
  importance = np.array([0.2, 1.0, 0.5, 0.7, 0.9], np.float32)
  arguments = (
    cases.variables_of(agent, theta),
    cases.variables_of(agent, theta_hat),
    packing.Transition(*map(tf.constant, transition)),
  )
  got = agent.loss(*arguments, tf.constant(importance))
  mean, error, _ = slow_loss(agent, theta, theta_hat, transition, importance)
  np.testing.assert_allclose(got.loss, mean, rtol=1e-5)
  np.testing.assert_allclose(got.metrics['td_error'], error, rtol=1e-5)
  plain = agent.loss(*arguments)
  assert not np.isclose(plain.loss, got.loss)
  np.testing.assert_array_equal(plain.priorities, got.priorities)
  np.testing.assert_allclose(
    tf.reduce_mean(got.priorities[:4]), error + 1e-6, rtol=1e-5
  )
  np.testing.assert_array_equal(
    agent.loss(*arguments, tf.ones(5)).loss, plain.loss
  )


def test_a_termination_hides_what_comes_after_and_a_time_limit_does_not():
  agent = cases.make_agent(gamma=cases.GAMMA)
  theta = agent.initial(0)
  transition = cases.make_transitions()
  elsewhere = transition._replace(o_t=transition.o_t + 1)
  variables = cases.variables_of(agent, theta)
  one, two = (
    agent.loss(variables, variables, packing.Transition(*map(tf.constant, t)))
    for t in (transition, elsewhere)
  )
  same = np.isclose(one.priorities, two.priorities)
  np.testing.assert_array_equal(same[:4], [False, False, True, False])


def test_nothing_is_learned_through_the_target_network():
  agent = cases.make_agent()
  theta = cases.variables_of(agent, agent.initial(0))
  theta_hat = cases.variables_of(agent, agent.initial(1))
  transition = packing.Transition(*map(tf.constant, cases.make_transitions()))
  with tf.GradientTape() as tape:
    tape.watch([theta, theta_hat])
    loss = agent.loss(theta, theta_hat, transition).loss
  own, target = tape.gradient(loss, [theta, theta_hat])
  assert all(g is not None for g in own)
  assert target == [None] * 4


def _image_agent(**options):
  images = environments.Spec(
    'Images-v0', (36, 36, 1), num_actions=3, observation_dtype='uint8'
  )
  return dqn.DQN(dqn.Config(**options), images)


@pytest.mark.parametrize('dueling', [False, True])
def test_images_are_learned_from_and_acted_on_by_convolutions(dueling):
  agent = _image_agent(
    prioritized=True, exploration='ladder', epsilon=0.0, dueling=dueling
  )
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (2, 4, 36, 36, 1), dtype=np.uint8)
  layout = packing.TransitionLayout((36, 36, 1), observation_dtype='uint8')
  packed = layout.pack(
    images[0], [0, 1, 2, 0], [1.0, -1.0, 0.5, 0.0], [1, 1, 0, 1], images[1]
  )
  theta = agent.initial(0)
  variables = cases.variables_of(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    out = agent.loss(variables, variables, layout.unpack(tf.constant(packed)))
  assert all(
    np.any(gradient.numpy()) for gradient in tape.gradient(out.loss, variables)
  )
  actor = agent.actor(base.ActorInfo(0, 1, 0), 4)
  np.testing.assert_allclose(
    actor.priorities(theta, packed), out.priorities, rtol=1e-4
  )
  actions = actor.act(theta, images[0], 0, rng)
  assert actions.dtype == np.int32
  np.testing.assert_array_equal(actions, agent.greedy(theta)(images[0]))
  np.testing.assert_array_equal(
    actions, agent.act(theta[None], images[:1], 0, rng)[0]
  )


def test_a_network_that_does_not_take_the_observations_is_refused():
  with pytest.raises(
    environments.EnvironmentRefused, match="'mlp' would take the images"
  ):
    _image_agent(network='mlp')
  with pytest.raises(
    environments.EnvironmentRefused, match="'nature' takes images, but"
  ):
    cases.make_agent(network='nature')
  assert cases.make_agent(network='mlp').layout == cases.make_agent().layout


def test_the_same_seed_gives_the_same_parameters():
  theta = cases.make_agent().initial(7)
  assert theta.dtype == np.float32
  np.testing.assert_array_equal(theta, cases.make_agent().initial(7))
  assert not np.array_equal(theta, cases.make_agent().initial(8))
