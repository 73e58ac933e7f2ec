"""The loss of an agent, which is that of one member, for P members at once.

Members share no parameter, so the gradient of the sum of their losses holds
each member's own gradient in its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from agents import base
from agents import parameters


def split(layout: parameters.Layout, theta: tf.Tensor) -> list[tf.Tensor]:
  """`theta [P, D]` to variables `[P, *shape]`."""
  # The gradient of one split is one concatenation; slices would each make a
  # zero-padded [P, D] and add them up.
  parts = tf.split(theta, layout.sizes, axis=1)
  return [
    tf.reshape(part, (-1, *shape)) for part, shape in zip(parts, layout.shapes)
  ]


def of_all(
  agent: base.Agent,
  theta: tf.Tensor,
  target: tf.Tensor,
  experience: Any,
  importance: tf.Tensor | None,
) -> base.LossOutput:
  """The agent's loss for each member.

  Args:
    agent: has `loss`.
    theta: [P, D].
    target: parameters of the target networks [P, D].
    experience: of one update, leading axis [P].
    importance: weights [P, B] of prioritized sampling; None: all 1.

  Returns:
    What the loss of one returns, with a leading axis P.
  """

  def loss(member: Any) -> base.LossOutput:
    out = agent.loss(*member)
    if out.stopped is None:
      out = out._replace(stopped=tf.constant(False))
    return out

  members: Any = (
    split(agent.layout, theta),
    split(agent.layout, target),
    experience,
    importance,
  )

  def alone(index: int) -> base.LossOutput:
    return loss(_each(lambda x: x[index], members))

  number = theta.shape[0]
  if number == 1:
    return tf.nest.map_structure(lambda x: x[None], alone(0))
  if agent.images:
    # Convolutions cannot be mapped over filters: one after the other.
    each = [alone(index) for index in range(number)]
    return tf.nest.map_structure(lambda *x: tf.stack(x), *each)
  if importance is None:
    return tf.vectorized_map(
      lambda member: loss((*member, None)),
      members[:-1],
      fallback_to_while_loop=False,
    )
  return tf.vectorized_map(loss, members, fallback_to_while_loop=False)


def _each(fn: Callable[[tf.Tensor], tf.Tensor], nest: Any) -> Any:
  """tf.nest.map_structure that leaves None as it is."""
  return tf.nest.map_structure(lambda x: x if x is None else fn(x), nest)
