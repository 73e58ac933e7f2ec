"""Flat optimizers against Sonnet's and Keras' own, over twenty updates."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from murmuration.agents import optimizers

P, D, UPDATES, RATE = 3, 7, 20, 0.05
NAMES = ['sgd', 'adam', 'rmsprop', 'adagrad']

REFERENCES = {
  'sgd-sonnet': (optimizers.SGD(), lambda: snt.optimizers.SGD(RATE)),
  'sgd-keras': (
    optimizers.SGD(),
    lambda: tf.keras.optimizers.SGD(learning_rate=RATE),
  ),
  'adam-sonnet': (optimizers.Adam(), lambda: snt.optimizers.Adam(RATE)),
  # A large epsilon, so that its place in the formula is seen.
  'adam-sonnet-epsilon': (
    optimizers.Adam(beta1=0.8, beta2=0.95, epsilon=0.1),
    lambda: snt.optimizers.Adam(RATE, 0.8, 0.95, 0.1),
  ),
  # Keras adds epsilon before the bias correction: the same while it is small.
  'adam-keras': (
    optimizers.Adam(),
    lambda: tf.keras.optimizers.Adam(learning_rate=RATE, epsilon=1e-8),
  ),
  # Keras alone has it; the second has epsilon large and nothing to begin with.
  'adagrad-keras': (
    optimizers.Adagrad(),
    lambda: tf.keras.optimizers.Adagrad(learning_rate=RATE),
  ),
  'adagrad-keras-epsilon': (
    optimizers.Adagrad(initial=0.0, epsilon=0.1),
    lambda: tf.keras.optimizers.Adagrad(
      learning_rate=RATE, initial_accumulator_value=0.0, epsilon=0.1
    ),
  ),
  'rmsprop-sonnet': (
    optimizers.RMSProp(),
    lambda: snt.optimizers.RMSProp(RATE, decay=0.99, epsilon=1e-5),
  ),
  'rmsprop-keras': (
    optimizers.RMSProp(decay=0.9, epsilon=1e-3),
    lambda: tf.keras.optimizers.RMSprop(
      learning_rate=RATE, rho=0.9, epsilon=1e-3
    ),
  ),
}


def _gradients():
  """[UPDATES, P, D] over four orders of magnitude, and one element at zero."""
  rng = np.random.default_rng(0)
  scale = 10.0 ** rng.uniform(-2, 2, (P, D))
  gradients = rng.normal(size=(UPDATES, P, D)) * scale
  gradients[:, 0, 0] = 0.0
  return gradients.astype(np.float32)


def _run(optimizer, gradients, theta):
  """theta [P, D] after each update."""
  theta = tf.constant(theta)
  state = tuple(tf.zeros_like(theta) for _ in range(optimizer.slots))
  path = []
  for t, gradient in enumerate(gradients, start=1):
    step = tf.fill((len(theta), 1), t)
    state, direction = optimizer.direction(state, tf.constant(gradient), step)
    assert len(state) == optimizer.slots
    theta = theta - RATE * direction
    path.append(theta.numpy())
  return np.stack(path)


def _reference(optimizer, gradients, theta):
  variable = tf.Variable(theta)
  path = []
  for gradient in gradients:
    if isinstance(optimizer, snt.Optimizer):
      optimizer.apply([tf.constant(gradient)], [variable])
    else:
      optimizer.apply_gradients([(tf.constant(gradient), variable)])
    path.append(variable.numpy())
  return np.stack(path)


@pytest.mark.parametrize('name', REFERENCES)
def test_a_population_moves_as_with_the_library(name):
  optimizer, make_reference = REFERENCES[name]
  theta = np.random.default_rng(1).normal(size=(P, D)).astype(np.float32)
  gradients = _gradients()
  np.testing.assert_allclose(
    _run(optimizer, gradients, theta),
    _reference(make_reference(), gradients, theta),
    rtol=1e-4,
    atol=2e-5,
  )


@pytest.mark.parametrize('name', NAMES)
def test_members_do_not_feel_each_other(name):
  optimizer = optimizers.make(name)
  theta = np.zeros((P, D), np.float32)
  gradients = _gradients()
  together = _run(optimizer, gradients, theta)
  for member in range(P):
    one = slice(member, member + 1)
    alone = _run(optimizer, gradients[:, one], theta[one])
    np.testing.assert_allclose(together[:, one], alone, rtol=1e-5, atol=1e-6)


def test_adam_corrects_its_bias_by_each_members_own_count():
  # Member 1 is new while member 0 has made a thousand updates.
  gradient = tf.fill((2, 3), 0.25)
  zeros = tf.zeros((2, 3))
  _, direction = optimizers.Adam().direction(
    (zeros, zeros), gradient, tf.constant([[1000], [1]], tf.int64)
  )
  # By hand: m = 0.1 g, v = 0.001 g^2.
  m_hat, v_hat = 0.1 / (1 - 0.9**1000), 0.001 / (1 - 0.999**1000)
  np.testing.assert_allclose(direction[0], m_hat / v_hat**0.5, rtol=1e-4)
  np.testing.assert_allclose(direction[1], 1.0, rtol=1e-4)


@pytest.mark.vectors('gorila', kind='adagrad')
def test_adagrad_is_that_of_the_vectors(vector):
  inputs = vector.inputs
  optimizer = optimizers.Adagrad(
    inputs['initial_accumulator'], inputs['epsilon']
  )
  theta = tf.constant([inputs['theta']], tf.float64)
  state = (tf.zeros_like(theta),)
  for gradient, expected in zip(
    inputs['grads'], vector.expected['theta_after_each']
  ):
    state, direction = optimizer.direction(
      state, tf.constant([gradient], tf.float64), 1
    )
    theta -= inputs['lr'] * direction
    np.testing.assert_allclose(
      theta[0], expected, **vector.tolerance['float64']
    )
  np.testing.assert_allclose(
    state[0][0] + inputs['initial_accumulator'],
    vector.expected['accumulator'],
    **vector.tolerance['float64'],
  )


def test_an_optimizer_is_chosen_by_its_name():
  assert optimizers.make('adam', beta1=0.5) == optimizers.Adam(beta1=0.5)
  for name in NAMES:
    assert optimizers.make(name).slots in (0, 1, 2)
  with pytest.raises(ValueError, match="'lion' is not known.*'rmsprop'"):
    optimizers.make('lion')


def test_annealing_is_linear_to_zero_and_stays_there():
  found = [
    float(optimizers.annealed(tf.constant(n), 8.0)) for n in (0, 2, 8, 9)
  ]
  assert found == [1.0, 0.75, 0.0, 0.0]
  late = [
    float(optimizers.annealed(tf.constant(n), 8.0, 4.0)) for n in (3, 6, 9)
  ]
  assert late == [1.0, 0.5, 0.0]
