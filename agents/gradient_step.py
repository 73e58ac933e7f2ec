"""One step of P members down their gradients: pure, elementwise on [P, D].

XLA therefore compiles it into one loop over memory. Random draws and variables
are passed in, and changed values are returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from murmuration.agents import base

# (theta [P, D], step -rate * u [P, D], *operands) -> displacement [P, D].
Combine = Callable[..., 'tf.Tensor']


class Step(NamedTuple):
  """The results of a step."""

  theta: tf.Tensor  # [P, D]
  slots: tuple[tf.Tensor, ...]  # of the optimizer, [P, D] each
  # Updates that moved each member, int64 [P, C]; with `delayed` parameters, C
  # is 2 and the second column counts theirs.
  counts: tf.Tensor
  # Whether the gradient's norm is, bool [P]; if not, the member is unchanged.
  finite: tf.Tensor


def make(agent: base.Agent, combine: Combine | None) -> Callable[..., Step]:
  """Compiles a step of the agent; `combine` None adds the step as it is."""

  @tf.function(jit_compile=True, autograph=False)
  def step(vector, stopped, theta, slots, counts, rates, made, operands):
    # Where squares are beyond float32, limits and optimizers would make it 0.
    norm = tf.norm(vector, axis=1, keepdims=True)
    finite = tf.math.is_finite(norm)
    if agent.max_gradient_norm is not None:
      # The factor is 1 for a zero gradient, which stays zero.
      vector *= agent.max_gradient_norm / tf.maximum(
        norm, agent.max_gradient_norm
      )
    # A batch without experience, such as one of stale blocks, has a gradient of
    # exactly 0. It moves nothing; by momentum it would.
    told = tf.reduce_any(vector != 0.0, axis=1, keepdims=True)
    moves = finite & told & ~stopped[:, None]
    counted = moves
    if agent.delayed is not None:
      late = tf.logical_and(moves, agent.due(made))
      counted = tf.concat([moves, late], axis=1)
      moves = tf.where(agent.delayed, late, moves)
    counts = counts + tf.cast(counted, counts.dtype)
    # Each count needs its own bias correction. The optimizer is called for each
    # one; XLA merges the common subexpressions.
    found = [
      agent.optimizer.direction(slots, vector, tf.maximum(count, 1))
      for count in tf.split(counts, counts.shape[1], axis=1)
    ]
    new_slots, direction = found[0]
    if agent.delayed is not None:
      direction = tf.where(agent.delayed, found[1][1], direction)
    displacement = -rates * direction
    if agent.learning_rate_scale is not None:
      displacement *= tf.constant(agent.learning_rate_scale, tf.float32)
    factor = agent.rate_factor(made)
    if factor is not None:
      displacement *= factor
    displacement = tf.where(moves, displacement, 0.0)
    if combine is not None:
      displacement = combine(theta, displacement, *operands)
    theta = tf.where(finite, theta + displacement, theta)
    slots = tuple(tf.where(moves, n, o) for o, n in zip(slots, new_slots))
    return Step(theta, slots, counts, finite[:, 0])

  return step
