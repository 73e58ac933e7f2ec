"""One step of P members down their gradients: pure, elementwise on [P, D].

So XLA makes one loop over memory of it. Random draws and variables stay
outside: what a step needs of them comes in, and what it changes goes out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from agents import base

# (theta [P, D], step -rate * u [P, D], *operands) -> displacement [P, D].
Combine = Callable[..., 'tf.Tensor']


class Step(NamedTuple):
  """What a step makes of theta, and of what the learner keeps beside it.

  Attributes:
    theta: [P, D].
    slots: the optimizer's, each [P, D].
    counts: updates that moved each member, int64 [P, C]; where parameters are
      `delayed`, theirs stand in a second column.
    finite: [P] bool, False where a member's gradient is not finite: it keeps
      all it had.
    displacement: [P, D], what was added to theta where it is finite.
  """

  theta: tf.Tensor
  slots: tuple[tf.Tensor, ...]
  counts: tf.Tensor
  finite: tf.Tensor
  displacement: tf.Tensor


def make(agent: base.Agent, combine: Combine | None) -> Callable[..., Step]:
  """A compiled step.

  Args:
    agent: says optimizer, schedules, and what moves.
    combine: what is added to theta, of its step; None adds the step.
  """

  @tf.function(jit_compile=True, autograph=False)
  def step(vector, stopped, theta, slots, counts, rates, made, operands):
    finite = tf.reduce_all(tf.math.is_finite(vector), axis=1, keepdims=True)
    vector = tf.where(finite, vector, 0.0)
    if agent.max_gradient_norm is not None:
      norm = tf.norm(vector, axis=1, keepdims=True)
      # A zero gradient stays zero: the factor is then 1.
      vector *= agent.max_gradient_norm / tf.maximum(
        norm, agent.max_gradient_norm
      )
    moves = tf.logical_and(finite, ~stopped[:, None])
    counted = moves
    if agent.delayed is not None:
      late = tf.logical_and(moves, agent.due(made))
      counted = tf.concat([moves, late], axis=1)
      moves = tf.where(agent.delayed, late, moves)
    counts = counts + tf.cast(counted, counts.dtype)
    # Moments that are new need their own bias correction. Twice is no work: XLA
    # makes one of what both have in common.
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
    # Not by a gradient of zero: momentum would carry on what it has.
    displacement = tf.where(moves, displacement, 0.0)
    if combine is not None:
      displacement = combine(theta, displacement, *operands)
    theta = tf.where(finite, theta + displacement, theta)
    slots = tuple(tf.where(moves, n, o) for o, n in zip(slots, new_slots))
    return Step(theta, slots, counts, finite[:, 0], displacement)

  return step
