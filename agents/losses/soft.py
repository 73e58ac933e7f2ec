"""Maximum entropy RL: a tanh-squashed Gaussian, and its temperature.

Haarnoja et al. 2018, arXiv:1801.01290 and arXiv:1812.05905 (SAC).
"""

from __future__ import annotations

import math

import tensorflow as tf

from murmuration.agents.losses import policy_gradient


def squashed_gaussian(
  mean: tf.Tensor, log_sigma: tf.Tensor, noise: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """A reparameterised action and its log-probability.

  arXiv:1812.05905, Eq. 8, and arXiv:1801.01290, Appendix C, Eq. 21:

    u = mean + sigma noise,  a = tanh(u)
    log pi(a) = log N(u; mean, sigma) - sum_i log(1 - tanh(u_i)^2)

  Gradients flow through both. The code writes log(1 - tanh(u)^2) as
  2 (log 2 - u - softplus(-2 u)), which stays finite where tanh is 1 in float32.

  Args:
    mean: before the tanh, float32 [B, A].
    log_sigma: float32 [B, A].
    noise: standard normal numbers, float32 [B, A].

  Returns:
    a [B, A] and log pi(a) [B].
  """
  sigma = tf.exp(log_sigma)
  u = mean + sigma * noise
  log_slope = 2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u))
  log_pi = policy_gradient.gaussian_log_prob(mean, sigma, u)
  return tf.tanh(u), log_pi - tf.reduce_sum(log_slope, axis=-1)


def temperature(
  log_alpha: tf.Tensor, log_pi: tf.Tensor, target_entropy: float
) -> tf.Tensor:
  """-alpha (log pi(a) + H), [B]: arXiv:1812.05905, Eq. 18, for alpha alone.

  Args:
    log_alpha: float32 [] or [1].
    log_pi: of the policy's actions, float32 [B]. No gradient flows through it.
    target_entropy: H, in nats.
  """
  return -tf.exp(log_alpha) * tf.stop_gradient(log_pi + target_entropy)
