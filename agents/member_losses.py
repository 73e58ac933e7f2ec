"""An agent's loss, which is that of one member, for P members at once."""

from __future__ import annotations

from collections.abc import Callable
import functools
import logging
import threading
from typing import Any

import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import parameters

_logger = logging.getLogger(__name__)
# Of gradients of tf.cond, tf.map_fn and tf.scan, for example.
_NOT_VECTORISED = (TypeError, ValueError, NotImplementedError)
_quiet = threading.Lock()  # learners may be threads


def split(layout: parameters.Layout, theta: tf.Tensor) -> list[tf.Tensor]:
  """`theta [P, D]` to variables `[P, *shape]`."""
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
) -> tuple[base.LossOutput, tf.Tensor]:
  """The agent's loss of each member, and its gradient.

  Args:
    agent: whose loss it is.
    theta: [P, D].
    target: parameters of the target networks, [P, D].
    experience: one update's, leading axis [P].
    importance: weights of prioritized sampling, [P, B]; None: all 1.

  Returns:
    A `LossOutput` with a leading axis P, and the gradient, [P, D].
  """

  def loss(member: Any) -> tuple[base.LossOutput, tf.Tensor]:
    variables, *rest = member
    # Inside the map: vectorised, a function loses its `tf.custom_gradient`.
    with tf.GradientTape() as tape:
      tape.watch(variables)
      out = _checked(agent, agent.loss(variables, *rest))
    gradients = tape.gradient(out.loss, variables)
    if all(g is None for g in gradients):
      raise ValueError(
        f'The loss of {agent.name} depends on none of its parameters. Compute '
        'it from `variables`, by functions of TensorFlow that have gradients.'
      )
    if out.priorities is None:
      if importance is not None:
        raise ValueError(
          f'{agent.name} sets priority_exponent, but its loss gives no '
          'priorities for replay.'
        )
      out = out._replace(priorities=tf.zeros((1,)))
    elif importance is not None:
      what = f"{agent.name}'s priorities"
      check_shape(what, out.priorities, rest[-1].shape)
    parts = [
      tf.zeros(v.shape.num_elements()) if g is None else tf.reshape(g, (-1,))
      for g, v in zip(gradients, variables)
    ]
    return out, tf.concat(parts, axis=0)

  members: Any = (
    split(agent.layout, theta),
    split(agent.layout, target),
    experience,
    importance,
  )

  def alone(index: int) -> tuple[base.LossOutput, tf.Tensor]:
    return loss(_each(lambda x: x[index], members))

  number = theta.shape[0]
  if number == 1:
    return tf.nest.map_structure(lambda x: x[None], alone(0))
  why = ''
  # Convolutions cannot be vectorised over filters.
  if not agent.images:
    try:
      return _vectorised(loss, members)
    except _NOT_VECTORISED as e:
      why = str(e).partition('\n')[0]
  # If the loss itself is at fault, this raises it again.
  each = [alone(index) for index in range(number)]
  if why:
    _logger.info(
      'The loss of %s is computed for one member after another: %s',
      agent.name,
      why,
    )
  return tf.nest.map_structure(lambda *x: tf.stack(x), *each)


def _checked(agent: base.Agent, out: Any) -> base.LossOutput:
  """What a loss gives, in tensors, where it is what is asked for.

  Raises:
    ValueError: says what is asked for.
  """
  if not isinstance(out, base.LossOutput):
    raise ValueError(
      f'The loss of {agent.name} returns {type(out).__name__}; needed is '
      'base.LossOutput(loss, priorities, metrics).'
    )
  of, mean = f"{agent.name}'s", 'Take the mean over the batch.'
  check_shape(f'{of} loss', out.loss, (), mean)
  # The learner itself adds this one.
  own = {'stopped_updates'}
  given, needed = {*out.metrics} - own, {*agent.metrics} - own
  if given != needed:
    raise ValueError(
      f'The loss of {agent.name} gives the metrics {sorted(given)}, but its '
      f'`metrics` are {sorted(needed)}. Make them the same.'
    )
  for name, value in out.metrics.items():
    check_shape(f'{of} metric {name!r}', value, (), mean)
  shapes = {v.name: v.shape for v in agent.layout.variables}
  for name, value in out.statistics.items():
    if name in shapes:  # the learner refuses others
      check_shape(f'{of} statistic {name!r}', value, shapes[name])
  return out._replace(
    loss=tf.convert_to_tensor(out.loss),
    metrics={n: tf.cast(v, tf.float32) for n, v in out.metrics.items()},
    statistics={n: tf.cast(v, tf.float32) for n, v in out.statistics.items()},
    stopped=tf.constant(False)
    if out.stopped is None
    else tf.convert_to_tensor(out.stopped),
  )


def check_shape(
  what: str, value: Any, shape: Any, advice: str = 'Reshape it.'
) -> None:
  """Refuses another shape than is asked for, which might broadcast in silence.

  Static shapes are compared, while the loss is traced: an update costs no more.

  Raises:
    ValueError: says what has which shape, and which is needed.
  """
  if value is None:
    raise ValueError(f'{what} is None, but {tuple(shape)} is needed.')
  found = tf.convert_to_tensor(value).shape
  if not found.is_compatible_with(shape):
    raise ValueError(
      f'{what} has shape {tuple(found)}, but {tuple(shape)} is needed. {advice}'
    )


def _vectorised(loss: Callable[[Any], Any], members: Any) -> Any:
  given = members if members[-1] is not None else members[:-1]

  # A function of its own: of an attempt that fails, no operation stays.
  @functools.partial(tf.function, autograph=False)
  def of(given):
    return tf.vectorized_map(
      lambda member: loss((*member, None)[: len(members)]),
      given,
      fallback_to_while_loop=False,
    )

  # TensorFlow logs what it cannot convert as an error, with its whole graph.
  log = tf.get_logger()
  with _quiet:
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
      return of(given)
    finally:
      log.setLevel(level)


def _each(fn: Callable[[tf.Tensor], tf.Tensor], nest: Any) -> Any:
  """Like tf.nest.map_structure, but leaves None as it is."""
  return tf.nest.map_structure(lambda x: x if x is None else fn(x), nest)
