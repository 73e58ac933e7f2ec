"""Losses of deterministic policies, against derivatives taken by hand."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents.losses import policy

RNG = np.random.default_rng(0)
ACTION = RNG.normal(size=(6, 3)).astype(np.float32)
# Norms on both sides of 1, and a gradient of zero.
DQ_DA = (RNG.normal(size=(6, 3)) * np.array([[0, 0.1, 0.5, 1, 3, 9]]).T).astype(
  np.float32
)


def _slope(max_norm):
  action = tf.constant(ACTION)
  with tf.GradientTape() as tape:
    tape.watch(action)
    loss = policy.deterministic_policy_gradient(action, DQ_DA, max_norm)
  assert loss.shape == (6,)
  return tape.gradient(loss, action).numpy()


def test_the_gradient_is_that_of_minus_q():
  np.testing.assert_allclose(_slope(None), -DQ_DA)


def test_each_sample_is_shortened_to_the_largest_norm():
  norms = np.linalg.norm(DQ_DA, axis=-1, keepdims=True)
  assert (norms < 1).any() and (norms > 1).any()
  expected = [
    -row / norm if norm > 1 else -row for row, norm in zip(DQ_DA, norms)
  ]
  np.testing.assert_allclose(_slope(1.0), expected, rtol=1e-5)
  np.testing.assert_array_equal(_slope(1.0)[0], 0.0)


def test_no_gradient_flows_into_the_critic():
  dq_da = tf.constant(DQ_DA)
  with tf.GradientTape() as tape:
    tape.watch(dq_da)
    loss = policy.deterministic_policy_gradient(tf.constant(ACTION), dq_da)
  assert tape.gradient(loss, dq_da) is None


def test_smoothing_clips_the_noise_and_then_the_action():
  a_t = tf.constant([[0.0, 0.0, 0.9, -0.9]])
  noise = tf.constant([[0.2, 3.0, 0.4, -3.0]])
  np.testing.assert_allclose(
    policy.smoothed(a_t, noise, 0.5), [[0.2, 0.5, 1.0, -1.0]]
  )


def test_an_action_is_saturated_from_a_preactivation_of_ten_on():
  x = tf.constant([[0.0, 9.9], [10.1, -10.1], [-300.0, 2.0]])
  np.testing.assert_allclose(policy.saturation(x), [0.0, 1.0, 0.5])


def test_noise_is_normal_and_decided_by_the_batch():
  a_t = tf.zeros((4000, 2))
  o_t = tf.constant(RNG.normal(size=(4000, 5)).astype(np.float32))
  r_t = tf.constant(RNG.normal(size=4000).astype(np.float32))
  one = policy.noise_like(a_t, o_t, r_t).numpy()
  np.testing.assert_array_equal(one, policy.noise_like(a_t, o_t, r_t))
  for other in ((o_t + 1e-3, r_t), (o_t, r_t + 1e-3)):
    assert not np.isclose(one, policy.noise_like(a_t, *other)).any(axis=1).all()
  # Five standard errors of a mean, and of a standard deviation.
  assert abs(one.mean()) < 5 / np.sqrt(one.size)
  assert abs(one.std() - 1) < 5 / np.sqrt(2 * one.size)


def test_actions_decide_the_noise_where_all_else_sums_up_alike():
  a_t, r_t = tf.zeros((64, 2)), tf.zeros(64)
  cells = tf.one_hot(tf.range(64) % 5, 5)
  a_tm1 = tf.constant(RNG.normal(size=(64, 2)).astype(np.float32))
  one = policy.noise_like(a_t, cells, r_t, a_tm1).numpy()
  other = policy.noise_like(a_t, cells, r_t, a_tm1 + 1e-3).numpy()
  assert not np.isclose(one, other).any(axis=1).all()


def test_the_last_digit_of_each_sum_decides_the_noise():
  a_t, seeds = tf.zeros((64, 2)), np.full((4, 2), 0.25, np.float32)
  one = policy.noise_like(a_t, *map(tf.constant, seeds)).numpy()
  for index in range(4):
    others = seeds.copy()
    others[index, 0] += 2.0**-20
    other = policy.noise_like(a_t, *map(tf.constant, others)).numpy()
    assert not np.isclose(one, other).any(axis=1).all()


def test_images_decide_the_noise_by_their_last_byte():
  # Their sum is more than 2^24, the largest that float32 counts up to, and its
  # last 25 binary digits are more too.
  images = np.full((64, 40, 40, 3), 200, np.uint8)
  a_t, r_t = tf.zeros((64, 2)), tf.zeros(64)
  one = policy.noise_like(a_t, tf.constant(images), r_t).numpy()
  images[-1, -1, -1, -1] += 1
  other = policy.noise_like(a_t, tf.constant(images), r_t).numpy()
  assert np.isfinite(one).all() and not np.isclose(one, other).any(axis=1).all()


def test_each_member_of_a_population_draws_noise_of_its_own():
  o_t = tf.constant(RNG.normal(size=(3, 8, 5)).astype(np.float32))

  def draw(o):
    return policy.noise_like(tf.zeros((8, 2)), o, o[:, 0])

  got = tf.vectorized_map(draw, o_t, fallback_to_while_loop=False)
  for p in range(3):
    np.testing.assert_allclose(got[p], draw(o_t[p]), rtol=1e-6)
  assert not np.allclose(got[0], got[1])


def test_shapes_that_do_not_belong_together_are_refused():
  with pytest.raises(ValueError):
    policy.deterministic_policy_gradient(tf.constant(ACTION), DQ_DA[:, :2])
