"""The updates of one learner call: one traced loop, or one by one on the host.

Both make the same steps of a `TFLearner` in the same order:

    arrange(sample) -> [gradient(batch) -> exchange -> finish(gradient)] x U

An exchange that waits for other nodes between gradient and update has to leave
TensorFlow in between. An op that waited inside the traced loop would block a
thread of TensorFlow's executor, of which a node has one: two learners in one
process would then wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable
import math
import operator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import words
from murmuration.agents.exchange import base as exchange_base


class Results(NamedTuple):
  """What the updates of one call did, as arrays."""

  metrics: dict[str, np.ndarray]  # name to [U, P]
  finite: np.ndarray  # bool [U, P]
  priorities: np.ndarray | None  # [U, B, P]; None without probabilities
  theta: np.ndarray  # after the updates, [P, D]


def make(
  learner: Any, exchange: exchange_base.Exchange, compiled: bool
) -> InGraph | OnHost:
  """Returns the implementation that the learner's exchange needs.

  With `compiled`, XLA compiles each TensorFlow call into one program.
  """
  if exchange.on_host:
    return OnHost(learner, exchange, compiled)
  return InGraph(learner, compiled)


class InGraph:
  """All updates in one TensorFlow call."""

  def __init__(self, learner: Any, compiled: bool):
    self._learner = learner
    self._compiled = compiled
    self._call = words.Function(self._updates, compiled)

  def __call__(self, sample: Any, probabilities: tf.Tensor | None) -> Results:
    given = _arguments(sample, probabilities)
    metrics, finite, priorities, theta = self._call(*given)
    return Results(
      dict(zip(self._learner.agent.metrics, metrics)),
      finite,
      priorities[0] if priorities else None,
      theta,
    )

  def trace(self, sample: Any, probabilities: Any) -> None:
    """Builds the call for samples of these specs, without updating anything."""
    self._call.trace(*_arguments(sample, probabilities))
    if self._compiled:
      # XLA compiles only at the first call.
      _on_nothing(self._learner, self, sample, probabilities)

  def _updates(self, sample, probabilities=None):
    learner = self._learner
    count, names = learner.updates_per_call, list(learner.agent.metrics)
    batches, weights = _arranged(learner, sample, probabilities)

    def one(update):
      gradient = _gradient(learner, batches, weights, update)
      finite = learner.finish(gradient)
      priorities = []
      if weights is not None:
        # A batch without a finite gradient gives its items no priorities.
        new = tf.where(finite[:, None], gradient.priorities, math.nan)
        priorities = [tf.transpose(new)]
      return [gradient.metrics[name] for name in names], finite, priorities

    def body(update, arrays):
      def write(array, x):
        return array.write(update, x)

      return update + 1, tf.nest.map_structure(write, arrays, one(update))

    if count == 1:
      # Without a loop, A2C's call on CartPole-v1 takes an eighth less time.
      found = tf.nest.map_structure(lambda x: x[None], one(0))
    else:
      arrays = (
        [tf.TensorArray(tf.float32, count) for _ in names],
        tf.TensorArray(tf.bool, count),
        [] if weights is None else [tf.TensorArray(tf.float32, count)],
      )
      _, arrays = tf.while_loop(
        lambda update, _: update < count,
        body,
        (tf.constant(0), arrays),
        parallel_iterations=1,
      )
      found = tf.nest.map_structure(lambda array: array.stack(), arrays)
    metrics, finites, priorities = found
    return (
      tf.stack(metrics or [tf.zeros(())]),
      finites,
      priorities,
      learner.theta.read_value(),
    )


class OnHost:
  """U + 1 TensorFlow calls for U updates, with `exchange.meet` between two.

  Each call but the first finishes an update, and each but the last computes the
  next gradient. Variables hold the batches in the meantime.
  """

  def __init__(
    self, learner: Any, exchange: exchange_base.Exchange, compiled: bool
  ):
    self._learner = learner
    self._exchange = exchange
    self._compiled = compiled
    self._batches: Any = None
    self._weights: tf.Variable | None = None

  def __call__(self, sample: Any, probabilities: tf.Tensor | None) -> Results:
    def meet(gradient):
      return self._exchange.meet(self._learner, gradient)

    return self._updates(sample, probabilities, meet)

  def trace(self, sample: Any, probabilities: Any) -> None:
    """Builds the calls for samples of these specs, and updates nothing."""

    def alone(sample, probabilities):
      self._updates(sample, probabilities, lambda gradient: gradient)

    _on_nothing(self._learner, alone, sample, probabilities)

  def _updates(self, sample, probabilities, meet) -> Results:
    given = _arguments(sample, probabilities)
    if self._batches is None:
      self._build(given)
    count = self._learner.updates_per_call
    gradients, finites, priorities = [], [], []
    gradient = self._first(*given)
    for update in range(count):
      common = meet(gradient)
      gradients.append(gradient)
      carried = (
        common.vector,
        common.stopped,
        common.statistics,
        self._exchange.brought(),
      )
      if update + 1 < count:
        finite, gradient = self._next(*carried, np.int32(update + 1))
        self._learner.forget()  # `meet` may ask for the parameters.
      else:
        finite, theta = self._last(*carried)
      finites.append(finite)
      # As in `InGraph`.
      new = np.where(finite[:, None], gradients[-1].priorities, np.nan)
      priorities.append(new.T)
    metrics = {
      name: np.stack([gradient.metrics[name] for gradient in gradients])
      for name in self._learner.agent.metrics
    }
    known = None if self._weights is None else np.stack(priorities)
    return Results(metrics, np.stack(finites), known, theta)

  def _build(self, given: list[Any]) -> None:
    """Creates the calls, and variables for the output of `_arranged`."""
    learner, exchange = self._learner, self._exchange

    def arranged(sample, probabilities=None):
      return _arranged(learner, sample, probabilities)

    specs = words.specs_of(given)
    made = tf.function(arranged, autograph=False).get_concrete_function(*specs)
    batches, weights = tf.nest.map_structure(
      lambda x: x if x is None else tf.Variable(tf.zeros(x.shape, x.dtype)),
      made.structured_outputs,
    )
    self._batches, self._weights = batches, weights

    def gradient(update):
      # Not x[update]: XLA would compile a program for each value of `update`.
      return _gradient(learner, batches, weights, update, tf.gather)

    def first(sample, probabilities=None):
      new_batches, new_weights = arranged(sample, probabilities)
      tf.nest.map_structure(lambda v, x: v.assign(x), batches, new_batches)
      if weights is not None:
        weights.assign(new_weights)
      return gradient(tf.constant(0))

    def finish(vector, stopped, statistics, brought):
      exchange.take(brought)
      return learner.finish(
        base.Gradient(vector, tf.zeros(()), {}, stopped, statistics)
      )

    def following(vector, stopped, statistics, brought, update):
      finite = finish(vector, stopped, statistics, brought)
      return finite, gradient(update)

    def last(vector, stopped, statistics, brought):
      finite = finish(vector, stopped, statistics, brought)
      return finite, learner.theta.read_value()

    self._first, self._next, self._last = (
      words.Function(python, self._compiled)
      for python in (first, following, last)
    )


def _arguments(sample: Any, probabilities: Any) -> list[Any]:
  return [sample] if probabilities is None else [sample, probabilities]


def _arranged(learner: Any, sample: Any, probabilities: Any):
  """The batches of all updates, and their weights [U, P, B] or None."""
  batches = learner.arrange(sample)
  if probabilities is None:
    return batches, None
  exponent = learner.agent.importance_exponent
  shape = (learner.updates_per_call, -1, learner.num_members)
  drawn = tf.transpose(tf.reshape(probabilities, shape), (0, 2, 1))
  return batches, importance_weights(drawn, exponent)


def _gradient(
  learner: Any,
  batches: Any,
  weights: Any,
  update: tf.Tensor,
  take: Callable[[Any, tf.Tensor], tf.Tensor] = operator.getitem,
) -> base.Gradient:
  """The gradient of one update, from the batches of all."""
  return learner.gradient(
    tf.nest.map_structure(lambda x: take(x, update), batches),
    None if weights is None else take(weights, update),
  )


def _on_nothing(
  learner: Any, call: Callable[..., Any], sample: Any, probabilities: Any
) -> None:
  """Makes a call on zeros of these specs and restores the learner."""
  before = learner.save()
  specs = [sample] if probabilities is None else [sample, probabilities]
  zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
  call(*zeros, *[None] * (2 - len(specs)))
  learner.restore(before)


def importance_weights(probabilities: tf.Tensor, beta: float) -> tf.Tensor:
  """Weights `(1 / P)^beta` over each batch's largest: Schaul et al. 2016, 3.4.

  The size of the table is a common factor that this division cancels. `beta` 0
  corrects nothing, 1 everything.

  Args:
    probabilities: with which the items were drawn, positive, [..., B].

  Returns:
    [..., B], at most 1.
  """
  logs = -beta * tf.math.log(tf.maximum(probabilities, 1e-37))
  return tf.exp(logs - tf.reduce_max(logs, axis=-1, keepdims=True))
