"""The swarm's update against its vectors, alone and inside a learner."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import optimizers
from murmuration.agents.exchange import pull as pull_exchange

NAN = float('nan')


class FixedDraws:
  """Stands for the exchange's generator: every draw is `r`, [] or [D]."""

  def __init__(self, r):
    self._r = np.array(r, np.float32)
    self.state = tf.Variable(0)

  def uniform(self, shape):
    if self._r.ndim:
      return tf.constant(self._r[None])
    return tf.constant(np.broadcast_to(self._r, shape))


@pytest.fixture
def fix_draws(monkeypatch):
  def fix(r):
    monkeypatch.setattr(
      tf.random.Generator, 'from_seed', lambda *a, **k: FixedDraws(r)
    )

  return fix


def mirror(seed):
  """A generator that draws what an exchange with this seed draws."""
  return tf.random.Generator.from_seed(seed, alg='philox')


def _direction(inputs, dtype):
  """The optimizer's u and new state for one member, as in the case."""
  gradient = tf.constant([inputs['grad']], dtype)
  if inputs['optimizer'] == 'sgd':
    return optimizers.SGD().direction((), gradient, tf.constant([[1]]))
  adam = inputs['adam']
  state = tuple(tf.constant([adam[name]], dtype) for name in ('m', 'v'))
  step = tf.constant([[adam['step']]])
  optimizer = optimizers.Adam(adam['beta1'], adam['beta2'], adam['epsilon'])
  return optimizer.direction(state, gradient, step)


@pytest.mark.vectors('pso_update', optimizer='sgd')
def test_one_step_is_that_of_the_vectors(vector):
  inputs = vector.inputs
  theta = tf.constant([inputs['theta']], tf.float64)
  _, u = _direction(inputs, tf.float64)
  star, c = inputs['theta_star'], inputs['c']
  if star is None:  # the exchange holds c at 0 until there is one
    star, c = np.zeros(theta.shape[1]), 0.0
  moved = theta + pull_exchange.swarm_step(
    theta,
    inputs['sign'] * inputs['lr'] * u,
    tf.constant(star, tf.float64),
    tf.constant(c, tf.float64),
    tf.constant(inputs['r'], tf.float64),
    inputs['c_max'],
  )
  np.testing.assert_allclose(
    moved[0], vector.expected['theta'], **vector.tolerance['float64']
  )


@pytest.mark.vectors('pso_update', sign=-1.0)
def test_a_learner_moves_as_in_the_vectors(vector, linear_learner, fix_draws):
  inputs, expected = vector.inputs, vector.expected
  fix_draws(inputs['r'])
  pull = pull_exchange.Pull(inputs['c_max'])
  learner = linear_learner(
    [inputs['theta']],
    [inputs['lr']],
    pull,
    optimizers.make(inputs['optimizer']),
  )
  if inputs['optimizer'] == 'adam':
    saved = learner.save()
    saved['slot_0'] = np.array([inputs['adam']['m']])
    saved['slot_1'] = np.array([inputs['adam']['v']])
    saved['steps'] = np.array([[inputs['adam']['step'] - 1]])
    learner.restore(saved)
  star = inputs['theta_star']
  pull.set_star(None if star is None else np.array(star), inputs['c'])
  learner.step(tf.constant([[inputs['grad']]], tf.float32))
  tolerance = vector.tolerance['float32']
  np.testing.assert_allclose(
    learner.parameters()[0], expected['theta'], **tolerance
  )
  for slot, name in (('slot_0', 'm'), ('slot_1', 'v')):
    if name in expected:  # the pull is not seen by the moments
      np.testing.assert_allclose(
        learner.save()[slot][0], expected[name], **tolerance
      )


def test_each_member_and_update_has_a_draw_of_its_own(linear_learner):
  members, size, updates, seed, c = 3, 4, 5, 11, 0.4
  theta = np.random.default_rng(0).normal(size=(members, size))
  star = np.random.default_rng(1).normal(size=size)
  pull = pull_exchange.Pull(None)
  learner = linear_learner(
    theta, exchange=pull, updates_per_call=updates, seed=seed
  )
  pull.set_star(star, c)
  learner.step(tf.zeros((updates, members, size)))
  generator = mirror(seed)
  draws = []
  for _ in range(updates):
    draws.append(generator.uniform((members, 1)).numpy())
    theta = theta + c * draws[-1] * (star - theta)
  np.testing.assert_allclose(learner.parameters(), theta, rtol=1e-5, atol=1e-6)
  assert len(np.unique(draws)) == np.size(draws)


def test_a_member_that_skips_its_update_is_not_pulled(linear_learner):
  pull = pull_exchange.Pull()
  learner = linear_learner(np.zeros((2, 3)), exchange=pull)
  pull.set_star(np.full(3, -100.0), 0.05)
  gradient = np.ones((1, 2, 3), np.float32)
  gradient[0, 1] = NAN
  learner.step(tf.constant(gradient))
  theta = learner.parameters()
  np.testing.assert_array_equal(theta[1], np.zeros(3))
  assert (theta[0] < 0).all()


def test_a_new_weight_keeps_the_star(linear_learner, fix_draws):
  fix_draws(0.5)
  pull = pull_exchange.Pull(None)
  learner = linear_learner(np.zeros((1, 3)), exchange=pull)
  pull.set_star(np.array([1.0, 2.0, 3.0]), 0.0)
  learner.step(tf.zeros((1, 1, 3)))
  np.testing.assert_array_equal(learner.parameters(), [[0.0, 0.0, 0.0]])
  pull.set_star(None, 1.0)
  learner.step(tf.zeros((1, 1, 3)))
  np.testing.assert_array_equal(learner.parameters(), [[0.5, 1.0, 1.5]])


def test_each_member_is_pulled_by_its_own_weight(linear_learner, fix_draws):
  fix_draws(0.5)
  pull = pull_exchange.Pull(c_max=0.4)
  learner = linear_learner(np.zeros((3, 2)), exchange=pull)
  pull.set_star(np.array([1.0, 2.0]), np.array([0.0, 0.2, 0.8]))
  learner.step(tf.zeros((1, 3, 2)))
  np.testing.assert_allclose(
    learner.parameters(), [[0, 0], [0.1, 0.2], [0.2, 0.4]]
  )


def test_a_limit_of_zero_pulls_nobody():
  theta, step = np.ones((2, 3), np.float32), np.full((2, 3), 0.5, np.float32)
  found = pull_exchange.swarm_step(theta, step, 9.0, 0.7, 0.5, 0.0)
  np.testing.assert_array_equal(found, step)


def test_a_star_of_another_network_is_not_taken(linear_learner):
  pull = pull_exchange.Pull()
  linear_learner(np.zeros((1, 3)), exchange=pull)
  with pytest.raises(ValueError):
    pull.set_star(np.zeros(4), 0.1)


@pytest.mark.parametrize('period', [1, 3])
def test_a_pull_with_a_period_follows_every_third_update(
  period, linear_learner, fix_draws
):
  fix_draws(0.5)
  c, rate = 0.4, 0.1
  pull = pull_exchange.Pull(None, period=period)
  learner = linear_learner(np.zeros((1, 2)), [rate], pull, updates_per_call=2)
  star = np.array([1.0, 2.0])
  pull.set_star(star, c)
  theta, gradient = np.zeros(2), np.array([1.0, -1.0])
  for update in range(1, 9):
    if period == 1:
      theta = theta - rate * gradient + c / 2 * (star - theta)
    else:
      theta = theta - rate * gradient
      if update % 3 == 0:
        theta = theta + c / 2 * (star - theta)
    if update % 2 == 0:
      learner.step(tf.constant(np.tile(gradient, (2, 1, 1)), tf.float32))
      np.testing.assert_allclose(learner.parameters()[0], theta, rtol=1e-5)
