"""Generalized advantage estimation over unrolls with any number of ends.

Schulman et al. 2016, arXiv:1506.02438, equation 16. As in vtrace.py each step
has two flags: `discount_t`, which is 0 after a termination, and `last_t`, which
cuts the trace, however the episode ended.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class GAE(NamedTuple):
  """Estimates for an unroll. No gradient flows through them.

  Attributes:
    advantages: A_t, not normalised, float32 [T, B].
    returns: A_t + V(x_t), targets of the value function, float32 [T, B].
  """

  advantages: tf.Tensor
  returns: tf.Tensor


def gae(
  r_t: tf.Tensor,
  discount_t: tf.Tensor,
  last_t: tf.Tensor,
  values: tf.Tensor,
  next_values: tf.Tensor,
  lambda_: float,
  valid: tf.Tensor | None = None,
) -> GAE:
  """Advantages and returns.

  With k_t = 0 at the end of an episode, else 1:

    delta_t = r_t + g_t V(x'_{t+1}) - V(x_t)
    A_t     = delta_t + g_t k_t lambda A_{t+1},   A_T = 0

  Args not given here are as for `vtrace.vtrace`.

  Args:
    valid: False where the step is no experience, bool [T, B]: its advantage is
      0, and the trace before it stops there. None: all steps are valid.
  """
  each = (r_t, discount_t, last_t, values, next_values)
  tf.debugging.assert_shapes([(x, 'TB') for x in each])
  values = tf.stop_gradient(values)
  deltas = r_t + discount_t * tf.stop_gradient(next_values) - values
  weights = tf.where(last_t, tf.zeros_like(discount_t), lambda_ * discount_t)
  if valid is not None:
    deltas = tf.where(valid, deltas, tf.zeros_like(deltas))
    weights = tf.where(valid, weights, tf.zeros_like(weights))
  advantages = _traced(deltas, weights)
  return GAE(advantages, advantages + values)


def _traced(sums: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """A_t = delta_t + w_t A_{t+1}, with A_T = 0, in log2(T) passes.

  Each pass doubles the number of steps that a row sums up. A loop over steps
  would need an operation per step, and rollouts may have thousands. Weights are
  at most 1 here, so products of them cannot overflow.
  """
  num_steps = sums.shape[0]
  reach = 1
  while reach < num_steps:
    ahead = [[0, reach], [0, 0]]
    sums += weights * tf.pad(sums[reach:], ahead)
    weights *= tf.pad(weights[reach:], ahead)
    reach *= 2
  return sums
