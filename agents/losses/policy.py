"""Losses of deterministic policies: the policy gradient and its safeguards.

Silver et al. 2014 (DPG); Lillicrap et al. 2016, arXiv:1509.02971 (DDPG);
Fujimoto et al. 2018, arXiv:1802.09477 (TD3).
"""

from __future__ import annotations

import tensorflow as tf

# Beyond this tanh is flat in float32: the policy learns nothing there.
SATURATED = 10.0


def deterministic_policy_gradient(
  a_tm1: tf.Tensor, dq_da: tf.Tensor, max_norm: float | None = None
) -> tf.Tensor:
  """A loss whose gradient is that of -Q(s, mu(s)) with respect to mu only.

  Lillicrap et al. 2016, Eq. 6. Its value means nothing.

  Args:
    a_tm1: mu(s_{t-1}), through which the gradient flows, [B, A].
    dq_da: gradient of Q at that action, [B, A].
    max_norm: dq_da of each sample is shortened to this norm (Acme clips to
      1); None leaves it.

  Returns:
    [B].
  """
  tf.debugging.assert_shapes([(a_tm1, ('B', 'A')), (dq_da, ('B', 'A'))])
  if max_norm is not None:
    norm = tf.norm(dq_da, axis=-1, keepdims=True)
    # A zero gradient stays zero: the factor is then 1.
    dq_da *= max_norm / tf.maximum(norm, max_norm)
  return -tf.reduce_sum(tf.stop_gradient(dq_da) * a_tm1, axis=-1)


def smoothed(a_t: tf.Tensor, noise: tf.Tensor, limit: float) -> tf.Tensor:
  """Target policy smoothing (Fujimoto et al. 2018, Eq. 14).

    clip(mu'(s_t) + clip(noise, -limit, limit), -1, 1)

  Args:
    a_t: mu'(s_t), [B, A].
    noise: [B, A].
    limit: largest noise, in units of the canonical action.

  Returns:
    [B, A].
  """
  return tf.clip_by_value(a_t + tf.clip_by_value(noise, -limit, limit), -1, 1)


def saturation(preactivation: tf.Tensor) -> tf.Tensor:
  """Share of the actions whose tanh is flat, [B], from [B, A]."""
  flat = tf.cast(tf.abs(preactivation) > SATURATED, preactivation.dtype)
  return tf.reduce_mean(flat, axis=-1)


def noise_like(a_t: tf.Tensor, *seeds: tf.Tensor) -> tf.Tensor:
  """Standard normal numbers of the shape of `a_t`, decided by the batch.

  A loss has no random state of its own, so the data are the seed: two runs that
  draw the same batches draw the same noise, also after a resume.

  Args:
    a_t: [B, A].
    seeds: two tensors or more, float32 [...], or uint8 (images). One should
      have actions: observations and rewards may sum up to the same in every
      batch, as those of one cell in a grid do.
  """
  sums = tf.stack([_sum(x) for x in seeds])
  # The last digits of the sums: a bitcast would not map over a population, and
  # neither would tf.random's newer form of this op.
  words = tf.cast(tf.math.floormod(sums * 2.0**20, 2.0**30), tf.int32)
  seed = tf.stack([tf.reduce_sum(words[::2]), tf.reduce_sum(words[1::2])])
  return tf.raw_ops.StatelessRandomNormal(shape=tf.shape(a_t), seed=seed)


def _sum(x: tf.Tensor) -> tf.Tensor:
  """A sum that has its last digits, float32 []."""
  if not tf.as_dtype(x.dtype).is_integer:
    return tf.reduce_sum(x)
  # The bytes of a batch of images sum up to more than float32 counts to: its
  # last 24 binary digits, of which `noise_like` drops none.
  last = tf.math.floormod(tf.reduce_sum(tf.cast(x, tf.int32)), 2**24)
  return tf.cast(last, tf.float32) / 2.0**14
