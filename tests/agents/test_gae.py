"""GAE against the vectors and against the sum that defines it."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents.losses import gae

T, B = 13, 40


@pytest.mark.vectors('gae')
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_gae_gives_the_numbers_of_the_vectors(vector, dtype):
  given = vector.inputs

  def column(name, dtype=dtype):
    array = np.asarray(given[name])
    return tf.constant(array.reshape(len(array), -1), dtype)

  discounts = given['gamma'] * (1 - column('terminated').numpy())
  got = gae.gae(
    column('rewards'),
    tf.constant(discounts, dtype),
    column('terminated', bool) | column('truncated', bool),
    column('values'),
    column('next_values'),
    given['lambda_'],
  )
  for name, array in got._asdict().items():
    expected = np.asarray(vector.expected[name])
    np.testing.assert_allclose(
      array.numpy().reshape(expected.shape),
      expected,
      **vector.tolerance[dtype],
    )


def _inputs(seed=0):
  """Ends of both kinds, at the last step too."""
  rng = np.random.default_rng(seed)
  terminated = rng.random((T, B)) < 0.1
  truncated = (rng.random((T, B)) < 0.1) & ~terminated
  assert terminated[-1].any() and truncated[-1].any()
  return {
    'r_t': rng.normal(size=(T, B)),
    'discount_t': np.where(terminated, 0.0, 0.9),
    'last_t': terminated | truncated,
    'values': rng.normal(size=(T, B)),
    'next_values': rng.normal(size=(T, B)),
  }


def slow_advantages(inputs, lambda_, valid=None):
  """sum_l (gamma lambda)^l delta_{t+l}, to the end of the episode."""
  result = np.zeros((T, B))
  for b in range(B):
    for start in range(T):
      factor = 1.0
      for t in range(start, T):
        if valid is not None and not valid[t, b]:
          break
        result[start, b] += factor * (
          inputs['r_t'][t, b]
          + inputs['discount_t'][t, b] * inputs['next_values'][t, b]
          - inputs['values'][t, b]
        )
        if inputs['last_t'][t, b]:
          break
        factor *= 0.9 * lambda_
  return result


@pytest.mark.parametrize('lambda_', [0.0, 0.6, 1.0])
def test_gae_is_the_sum_in_equation_16(lambda_):
  inputs = _inputs()
  got = gae.gae(*map(tf.constant, inputs.values()), lambda_)
  expected = slow_advantages(inputs, lambda_)
  np.testing.assert_allclose(got.advantages, expected, rtol=1e-10, atol=1e-12)
  np.testing.assert_allclose(got.returns, expected + inputs['values'])


@pytest.mark.parametrize('length', [1, 2, 5, 8])
def test_every_length_of_an_unroll_is_summed(length):
  inputs = {name: array[:length] for name, array in _inputs().items()}
  got = gae.gae(*map(tf.constant, inputs.values()), 0.95)
  after = np.zeros(B)
  for t in reversed(range(length)):
    delta = inputs['r_t'][t] - inputs['values'][t]
    delta += inputs['discount_t'][t] * inputs['next_values'][t]
    after = delta + 0.9 * 0.95 * np.where(inputs['last_t'][t], 0.0, after)
    np.testing.assert_allclose(got.advantages[t], after)


def test_what_is_no_experience_is_worth_nothing_and_says_nothing():
  inputs = _inputs()
  valid = np.ones((T, B), bool)
  valid[4, :7] = False
  inputs['last_t'][4, :7] = False  # whatever it says of itself
  inputs['discount_t'][4, :7] = 0.9
  got = gae.gae(*map(tf.constant, inputs.values()), 0.95, tf.constant(valid))
  np.testing.assert_allclose(
    got.advantages, slow_advantages(inputs, 0.95, valid), atol=1e-12
  )
  np.testing.assert_array_equal(got.advantages[4, :7], np.zeros(7))
  np.testing.assert_array_equal(got.returns[4, :7], inputs['values'][4, :7])
  inputs['r_t'][4, :7] = np.nan
  again = gae.gae(*map(tf.constant, inputs.values()), 0.95, tf.constant(valid))
  np.testing.assert_array_equal(got.advantages, again.advantages)


def test_advantages_and_returns_carry_no_gradient():
  inputs = {name: tf.constant(array) for name, array in _inputs().items()}
  watched = [inputs['values'], inputs['next_values']]
  with tf.GradientTape() as tape:
    tape.watch(watched)
    got = gae.gae(*inputs.values(), 0.95)
    total = tf.reduce_sum(got.advantages) + tf.reduce_sum(got.returns)
  assert tape.gradient(total, watched) == [None] * 2


def test_wrong_shapes_are_refused():
  inputs = _inputs()
  inputs['last_t'] = inputs['last_t'][:-1]
  with pytest.raises(ValueError, match=f'dimension 0 must have size {T}'):
    gae.gae(*map(tf.constant, inputs.values()), 0.95)
