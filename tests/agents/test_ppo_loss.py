"""PPO's losses against the vectors and one step at a time."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents.losses import ppo


@pytest.mark.vectors('ppo_loss')
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_the_surrogate_gives_the_numbers_of_the_vectors(vector, dtype):
  given = vector.inputs
  got = ppo.clipped_surrogate(
    *(tf.constant(given[name], dtype)
      for name in ('log_prob', 'old_log_prob', 'advantages')),
    given['clip'],
  )  # fmt: skip
  found = {**got._asdict(), 'loss': -tf.reduce_mean(got.surrogate)}
  for name, expected in vector.expected.items():
    np.testing.assert_allclose(found[name], expected, **vector.tolerance[dtype])


def _ratios():
  """Below, within and above the clip, for good and bad actions."""
  ratios = np.array([0.5, 0.79, 0.9, 1.0, 1.1, 1.21, 3.0] * 2)
  advantages = np.repeat([2.0, -2.0], 7)
  return ratios, advantages


def test_only_what_goes_beyond_the_clip_to_gain_has_no_gradient():
  ratios, advantages = _ratios()
  log_mu = tf.constant(np.random.default_rng(0).normal(size=14))
  log_pi = log_mu + np.log(ratios)
  given = log_pi, log_mu, tf.constant(advantages)
  with tf.GradientTape() as tape:
    tape.watch(given)
    got = ppo.clipped_surrogate(*given, 0.2)
  gradient, *others = tape.gradient(got.surrogate, given)
  assert others == [None] * 2
  gains = (advantages > 0) & (ratios > 1.2) | (advantages < 0) & (ratios < 0.8)
  assert 0 < gains.sum() < 14
  np.testing.assert_allclose(
    gradient, np.where(gains, 0.0, ratios * advantages), atol=1e-12
  )


def test_a_ratio_that_no_number_holds_is_still_a_number():
  got = ppo.clipped_surrogate(
    tf.constant([300.0, -300.0]), tf.zeros(2), tf.constant([1.0, -1.0]), 0.2
  )
  np.testing.assert_allclose(got.surrogate, [1.2, -0.8], rtol=1e-6)
  assert np.isfinite(ppo.divergence(got.ratio)).all()


def test_a_clipped_value_loss_is_the_larger_of_two():
  rng = np.random.default_rng(0)
  values, returns, old = rng.normal(size=(3, 200))
  plain = ppo.value_loss(*map(tf.constant, (values, returns, old)))
  np.testing.assert_allclose(plain, (values - returns) ** 2)
  given = [tf.constant(x) for x in (values, returns, old)]
  with tf.GradientTape() as tape:
    tape.watch(given)
    got = ppo.value_loss(*given, 0.3)
  slope, *others = tape.gradient(got, given)
  assert others == [None] * 2
  differs = 0
  for i in range(200):
    near = min(max(values[i], old[i] - 0.3), old[i] + 0.3)
    error = values[i] - returns[i]
    bound = (near - returns[i]) ** 2 > error**2
    np.testing.assert_allclose(got[i], max(error**2, (near - returns[i]) ** 2))
    np.testing.assert_allclose(slope[i], 0.0 if bound else 2 * error)
    differs += bound
  assert differs > 10, 'the clip must bind'


def test_the_divergence_is_the_one_of_the_distributions():
  mu, pi = np.array([0.2, 0.5, 0.3]), np.array([0.4, 0.25, 0.35])
  each = ppo.divergence(tf.constant(pi / mu))
  np.testing.assert_allclose(
    np.sum(mu * each.numpy()), np.sum(mu * np.log(mu / pi))
  )
  assert (each.numpy() >= 0).all()
