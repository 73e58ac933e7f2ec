"""Actor-critic losses on unrolls, and the density of a Gaussian policy.

Equations of docs/agents/impala.md and docs/agents/impass.md. Losses are means
over the steps where `mask` is 1; all arguments have leading axes [T, B].
"""

from __future__ import annotations

import math

import tensorflow as tf

from murmuration.agents.losses import value


def masked_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
  """Mean [] over the steps where mask is 1; 0 if there is none.

  Both have the same shape: others, such as [T, B, 1], would broadcast.
  """
  tf.TensorShape(x.shape).assert_is_compatible_with(mask.shape)
  return tf.reduce_sum(x * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


def policy_gradient(
  log_pi: tf.Tensor, advantages: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
  """- mean adv_t log pi(a_t|x_t).

  Args:
    log_pi: log pi(a_t|x_t), float32 [T, B].
    advantages: no gradient flows through them, float32 [T, B].
    mask: float32 [T, B].

  Returns:
    Loss []. Its negative gradient is the policy gradient of the return.
  """
  return -masked_mean(tf.stop_gradient(advantages) * log_pi, mask)


def baseline(
  values: tf.Tensor, targets: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
  """0.5 mean (v_t - V(x_t))^2, [].

  Args:
    values: V(x_t), float32 [T, B].
    targets: v_t; no gradient flows through them, float32 [T, B].
    mask: float32 [T, B].
  """
  return masked_mean(value.squared(tf.stop_gradient(targets) - values), mask)


def normalise(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
  """(x - mean) / standard deviation, float32 [T, B].

  Args:
    x: float32 [T, B].
    mask: weights of the moments, not negative, float32 [T, B].
  """
  weights = mask / tf.maximum(tf.reduce_sum(mask), 1e-8)
  mean = tf.reduce_sum(weights * x)
  variance = tf.reduce_sum(weights * tf.square(x - mean))
  return (x - mean) * tf.math.rsqrt(variance + 1e-8)


def gaussian_log_prob(
  mean: tf.Tensor, sigma: tf.Tensor, actions: tf.Tensor
) -> tf.Tensor:
  """Log-density of a diagonal Gaussian, [T, B] (IMPASS, Eq. 8).

  Args:
    mean: float32 [T, B, A].
    sigma: standard deviations, positive, float32 [T, B, A].
    actions: as drawn, not clipped, float32 [T, B, A].
  """
  z = (actions - mean) / sigma
  return tf.reduce_sum(
    -0.5 * tf.square(z) - tf.math.log(sigma) - 0.5 * math.log(2 * math.pi),
    axis=-1,
  )
