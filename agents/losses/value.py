"""Losses on action values: Q-learning, double Q-learning, Huber.

Suffixes say which step a value belongs to (RLax): `q_tm1` at the step acted
on, `q_t` at the step arrived at. `discount_t` is gamma times the product of the
environment's discounts over the window: 0 after a termination, but not after a
time limit.
"""

from __future__ import annotations

import tensorflow as tf


def q_learning(
  q_tm1: tf.Tensor,
  a_tm1: tf.Tensor,
  r_t: tf.Tensor,
  discount_t: tf.Tensor,
  q_t: tf.Tensor,
) -> tf.Tensor:
  """Q-learning temporal-difference error.

  Mnih et al. 2015, Eq. 1 (q_t from the target network):

    y = r_t + discount_t * max_a q_t[a]

  Args:
    q_tm1: Q(s_{t-1}, .), float32 [B, A].
    a_tm1: action taken, int32 [B].
    r_t: reward, or its n-step sum, float32 [B].
    discount_t: float32 [B].
    q_t: target network's Q(s_t, .), float32 [B, A].

  Returns:
    y - q_tm1[a_tm1], float32 [B]. No gradient flows through y.
  """
  tf.debugging.assert_shapes(
    [(q_tm1, 'BA'), (a_tm1, 'B'), (r_t, 'B'), (discount_t, 'B'), (q_t, 'BA')]
  )
  target = r_t + discount_t * tf.reduce_max(q_t, axis=-1)
  return tf.stop_gradient(target) - select(q_tm1, a_tm1)


def double_q_learning(
  q_tm1: tf.Tensor,
  a_tm1: tf.Tensor,
  r_t: tf.Tensor,
  discount_t: tf.Tensor,
  q_t_value: tf.Tensor,
  q_t_selector: tf.Tensor,
) -> tf.Tensor:
  """Double Q-learning temporal-difference error.

  van Hasselt et al. 2016, arXiv:1509.06461, Eq. 4:

    y = r_t + discount_t * q_t_value[argmax_a q_t_selector[a]]

  Args not given here are as for `q_learning`.

  Args:
    q_t_value: target network's Q(s_t, .), float32 [B, A].
    q_t_selector: online network's Q(s_t, .), float32 [B, A]; ties go to the
      lowest action.

  Returns:
    y - q_tm1[a_tm1], float32 [B]. No gradient flows through y.
  """
  tf.debugging.assert_shapes(
    [
      *((q, 'BA') for q in (q_tm1, q_t_value, q_t_selector)),
      *((x, 'B') for x in (a_tm1, r_t, discount_t)),
    ]
  )
  best = tf.argmax(q_t_selector, axis=-1)
  target = r_t + discount_t * select(q_t_value, best)
  return tf.stop_gradient(target) - select(q_tm1, a_tm1)


def squared(td_error: tf.Tensor) -> tf.Tensor:
  """Half the squared error, elementwise."""
  return 0.5 * tf.square(td_error)


def huber(td_error: tf.Tensor, delta: float = 1.0) -> tf.Tensor:
  """Huber's loss, elementwise: quadratic within `delta`, then linear.

  Huber 1964; Mnih et al. 2015 call it error clipping to [-1, 1].
  """
  absolute = tf.abs(td_error)
  quadratic = tf.minimum(absolute, delta)
  return 0.5 * tf.square(quadratic) + delta * (absolute - quadratic)


def select(values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
  """values[b, actions[b]], float32 [B], from values [B, A] and actions [B].

  A product with one-hot rows costs less than a gather with its scattered
  gradient, and is vectorised over a population without a loop.
  """
  chosen = tf.one_hot(actions, values.shape[-1], dtype=values.dtype)
  return tf.reduce_sum(values * chosen, axis=-1)
