"""Losses on action values, against the vectors and the papers' sums."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import updates
from murmuration.agents.losses import priorities
from murmuration.agents.losses import value


def slow_errors(q_tm1, a_tm1, r_t, discount_t, q_t, q_t_selector):
  """Equation 4 of van Hasselt et al., one transition at a time."""
  errors = []
  for b in range(len(a_tm1)):
    best = 0
    for action in range(len(q_t_selector[b])):
      if q_t_selector[b][action] > q_t_selector[b][best]:
        best = action
    y = r_t[b] + discount_t[b] * q_t[b][best]
    errors.append(y - q_tm1[b][a_tm1[b]])
  return np.array(errors)


def _batch(dtype=np.float64, batch=12, actions=4):
  """Arguments of double_q_learning; a third of the transitions terminated."""
  rng = np.random.default_rng(0)
  discount = 0.99 * (np.arange(batch) % 3 > 0)
  return (
    rng.normal(size=(batch, actions)).astype(dtype),
    rng.integers(0, actions, batch).astype(np.int32),
    rng.normal(size=batch).astype(dtype),
    discount.astype(dtype),
    rng.normal(size=(batch, actions)).astype(dtype),
    rng.normal(size=(batch, actions)).astype(dtype),
  )


@pytest.mark.vectors('double_dqn')
@pytest.mark.parametrize('dtype', ['float64', 'float32'])
def test_double_q_learning_is_that_of_the_vectors(vector, dtype):
  names = ('q_tm1', 'R', 'D', 'q_t_target', 'q_t_online')
  q_tm1, r_t, d_t, q_t, selector = (
    np.array(vector.inputs[name], dtype) for name in names
  )
  a_tm1 = np.array(vector.inputs['actions'], np.int32)
  discount_t = np.array(vector.inputs['gamma'], dtype) * d_t
  error = value.double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, selector)
  tolerance = vector.tolerance[dtype]
  np.testing.assert_allclose(error, vector.expected['td_errors'], **tolerance)
  np.testing.assert_allclose(
    value.huber(error), vector.expected['huber'], **tolerance
  )
  np.testing.assert_allclose(
    error + value.select(tf.constant(q_tm1), a_tm1),
    vector.expected['targets'],
    **tolerance,
  )


@pytest.mark.vectors('prioritized_weights')
@pytest.mark.parametrize('dtype', ['float64', 'float32'])
def test_the_weighted_loss_is_that_of_the_vectors(vector, dtype):
  inputs, expected = vector.inputs, vector.expected
  drawn = np.array(expected['probabilities'], dtype)[inputs['indices']]
  weights = updates.importance_weights(
    tf.constant(drawn[None]), inputs['beta']
  )[0]
  td_error = tf.constant(inputs['td_errors'], dtype)
  huber = value.huber(td_error, inputs['huber_delta'])
  tolerance = vector.tolerance[dtype]
  np.testing.assert_allclose(weights, expected['weights'], **tolerance)
  np.testing.assert_allclose(huber, expected['huber'], **tolerance)
  np.testing.assert_allclose(
    tf.reduce_mean(weights * huber), expected['loss'], **tolerance
  )
  # The vectors leave the 1e-6 out.
  np.testing.assert_allclose(
    priorities.proportional(td_error) - 1e-6,
    expected['new_priorities'],
    rtol=1e-5,
    atol=1e-7,
  )


def test_importance_weights_are_the_formula_of_each_batch():
  rng = np.random.default_rng(0)
  drawn, beta, size = rng.uniform(1e-5, 0.1, (3, 7)), 0.4, 1000
  slow = np.empty_like(drawn)
  for u, row in enumerate(drawn):
    raw = [(1 / (size * p)) ** beta for p in row]
    slow[u] = [w / max(raw) for w in raw]
  got = updates.importance_weights(tf.constant(drawn, tf.float32), beta)
  np.testing.assert_allclose(got, slow, rtol=1e-5)


def test_priorities_are_positive_and_of_the_kind_that_came():
  td_error = np.array([-2.0, 0.0, 0.5], np.float32)
  got = priorities.proportional(td_error)
  assert isinstance(got, np.ndarray)
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, [2 + 1e-6, 1e-6, 0.5 + 1e-6])
  tensor = priorities.proportional(tf.constant(td_error))
  assert isinstance(tensor, tf.Tensor)
  np.testing.assert_array_equal(tensor, got)


def test_double_q_learning_is_equation_4():
  batch = _batch()
  np.testing.assert_allclose(
    value.double_q_learning(*batch), slow_errors(*batch), rtol=1e-12
  )


def test_q_learning_is_double_q_learning_that_selects_by_the_target_network():
  q_tm1, a_tm1, r_t, discount_t, q_t, _ = _batch()
  np.testing.assert_allclose(
    value.q_learning(q_tm1, a_tm1, r_t, discount_t, q_t),
    slow_errors(q_tm1, a_tm1, r_t, discount_t, q_t, q_t),
    rtol=1e-12,
  )


@pytest.mark.parametrize('double', [False, True])
def test_no_gradient_flows_through_targets(double):
  q_tm1, a_tm1, r_t, discount_t, q_t, selector = map(tf.constant, _batch())
  with tf.GradientTape() as tape:
    sources = [q_tm1, r_t, discount_t, q_t, selector]
    tape.watch(sources)
    if double:
      arguments = (q_tm1, a_tm1, r_t, discount_t, q_t, selector)
      error = value.double_q_learning(*arguments)
    else:
      error = value.q_learning(q_tm1, a_tm1, r_t, discount_t, q_t)
  gradient, *others = tape.gradient(error, sources)
  assert others == [None] * 4
  # The error falls by one where the action was taken, and nowhere else.
  np.testing.assert_array_equal(gradient, -np.eye(4)[a_tm1.numpy()])


def test_losses_have_the_value_and_the_slope_of_their_formulas():
  # Both sides of each bend, the bends, and zero.
  error = np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
  x = tf.constant(error)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    losses = value.huber(x), value.huber(x, 2.0), value.squared(x)
  for loss, delta in zip(losses, (1.0, 2.0, np.inf)):
    expected = [
      0.5 * e**2 if abs(e) <= delta else delta * (abs(e) - delta / 2)
      for e in error
    ]
    np.testing.assert_allclose(loss, expected)
    np.testing.assert_allclose(
      tape.gradient(loss, x), np.clip(error, -delta, delta)
    )


def test_shapes_that_do_not_belong_together_are_refused():
  q_tm1, a_tm1, r_t, discount_t, q_t, selector = _batch()
  with pytest.raises(ValueError):
    value.q_learning(q_tm1, a_tm1[:, None], r_t, discount_t, q_t)
  with pytest.raises(ValueError):
    value.double_q_learning(
      q_tm1, a_tm1, r_t[:1], discount_t, q_t, selector[:, :2]
    )
