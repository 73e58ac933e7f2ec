"""The losses of PPO for single steps; the agent takes the means.

Schulman et al. 2017, arXiv:1707.06347. Results have the shape of the arguments,
which is arbitrary.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

# exp(20) is far above any clip, and finite in float32.
_MAX_LOG_RATIO = 20.0


class Surrogate(NamedTuple):
  """The surrogate objective of equation 7 for each step.

  Attributes:
    ratio: pi(a|x) / mu(a|x).
    surrogate: to maximise.
  """

  ratio: tf.Tensor
  surrogate: tf.Tensor


def clipped_surrogate(
  log_pi: tf.Tensor, log_mu: tf.Tensor, advantages: tf.Tensor, clip: float
) -> Surrogate:
  """min(ratio A, clip(ratio, 1 - clip, 1 + clip) A), equation 7.

  Args:
    log_pi: log pi(a|x) of the policy that learns.
    log_mu: log mu(a|x) of the policy that acted; no gradient flows through it.
    advantages: A; no gradient flows through it.
    clip: epsilon.
  """
  log_ratio = log_pi - tf.stop_gradient(log_mu)
  ratio = tf.exp(tf.clip_by_value(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
  advantages = tf.stop_gradient(advantages)
  clipped = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
  return Surrogate(ratio, tf.minimum(ratio * advantages, clipped * advantages))


def value_loss(
  values: tf.Tensor,
  returns: tf.Tensor,
  old_values: tf.Tensor,
  clip: float | None = None,
) -> tf.Tensor:
  """(V - ret)^2, equation 9, without a factor of 1/2.

  With `clip` it is the larger of this and the same with V kept within `clip` of
  its old value, as in OpenAI's baselines; not in the paper.

  Args:
    values: V(x).
    returns: ret; no gradient flows through it.
    old_values: V(x) before the epochs; no gradient flows through it.
    clip: in the units of V; None does not clip.
  """
  returns = tf.stop_gradient(returns)
  squares = tf.square(values - returns)
  if clip is None:
    return squares
  old_values = tf.stop_gradient(old_values)
  near = old_values + tf.clip_by_value(values - old_values, -clip, clip)
  return tf.maximum(squares, tf.square(near - returns))


def divergence(ratio: tf.Tensor) -> tf.Tensor:
  """ratio - 1 - log ratio: its mean over actions of mu is KL(mu || pi).

  Schulman 2020, joschu.net/blog/kl-approx.html, k3: never negative, and with
  less variance than - log ratio.
  """
  return ratio - 1.0 - tf.math.log(ratio)
