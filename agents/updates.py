"""The updates of one learner call: one traced loop, or one by one on the host.

Both go through the same steps of a `TFLearner` in the same order:

    arrange(sample) -> [gradient(batch) -> exchange -> finish(gradient)] x U

A topology whose exchange waits for other nodes between gradient and update has
to leave TensorFlow in between. An op that waited inside the traced loop would
hold a thread of TensorFlow's executor, and a node has one: two learners in one
process would wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable
import math
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from agents import base
from agents.exchange import base as exchange_base

# Metrics name to [U, P]; whether finite, bool [U, P]; priorities [U, B, P],
# None where the sample came without probabilities. Tensors, or arrays.
Results = tuple[dict[str, Any], Any, Any]


def make(
  learner: Any, exchange: exchange_base.Exchange, compiled: bool
) -> InGraph | OnHost:
  """The way that an exchange needs.

  Args:
    learner: `learner.TFLearner` whose updates these are.
    exchange: the learner's.
    compiled: whether XLA makes one program of each TensorFlow call.
  """
  if exchange.on_host:
    return OnHost(learner, exchange, compiled)
  return InGraph(learner, compiled)


class InGraph:
  """All updates in one TensorFlow call."""

  def __init__(self, learner: Any, compiled: bool):
    self._learner = learner
    self._compiled = compiled
    self.function = tf.function(
      self._updates, autograph=False, jit_compile=compiled
    )

  def __call__(self, sample: Any, probabilities: tf.Tensor | None) -> Results:
    return self.function(sample, probabilities)

  def trace(self, sample: Any, probabilities: Any) -> None:
    """Builds the call for samples of these specs, and updates nothing."""
    self.function.get_concrete_function(sample, probabilities)
    if self._compiled:
      # XLA compiles at the first call.
      _on_nothing(self._learner, self, sample, probabilities)

  def _updates(self, sample, probabilities=None):
    learner = self._learner
    count, names = learner.updates_per_call, list(learner.agent.metrics)
    batches, weights = _arranged(learner, sample, probabilities)

    def body(update, arrays, finites, priorities):
      gradient = _gradient(learner, batches, weights, update)
      finite = learner.finish(gradient)
      arrays = [
        array.write(update, gradient.metrics[name])
        for name, array in zip(names, arrays)
      ]
      if weights is not None:
        # A batch without a finite gradient says nothing of its items.
        new = tf.where(finite[:, None], gradient.priorities, math.nan)
        priorities = [priorities[0].write(update, tf.transpose(new))]
      return update + 1, arrays, finites.write(update, finite), priorities

    _, arrays, finites, priorities = tf.while_loop(
      lambda update, *_: update < count,
      body,
      (
        tf.constant(0),
        [tf.TensorArray(tf.float32, count) for _ in names],
        tf.TensorArray(tf.bool, count),
        [] if weights is None else [tf.TensorArray(tf.float32, count)],
      ),
      parallel_iterations=1,
    )
    metrics = {name: array.stack() for name, array in zip(names, arrays)}
    new = priorities[0].stack() if priorities else None
    return metrics, finites.stack(), new


class OnHost:
  """Two TensorFlow calls for each update; in between, `exchange.meet`.

  The batches wait in variables: what goes into a call costs about 50 us of
  Python for each tensor, here the index of an update or one gradient.
  """

  def __init__(
    self,
    learner: Any,
    exchange: exchange_base.Exchange,
    compiled: bool,
  ):
    self._learner = learner
    self._exchange = exchange
    self._compiled = compiled
    self._batches: Any = None
    self._weights: tf.Variable | None = None
    self._gradient = self._function(
      # Not x[update]: XLA would compile a program for each value of it.
      lambda update: _gradient(
        learner, self._batches, self._weights, update, tf.gather
      )
    )
    self._finish = self._function(
      lambda vector, stopped, statistics: learner.finish(
        base.Gradient(vector, tf.zeros(()), {}, stopped, statistics)
      )
    )

  def __call__(self, sample: Any, probabilities: tf.Tensor | None) -> Results:
    def meet(gradient):
      return self._exchange.meet(self._learner, gradient)

    return self._updates(sample, probabilities, meet)

  def trace(self, sample: Any, probabilities: Any) -> None:
    """Builds the calls for samples of these specs, and updates nothing."""

    def alone(sample, probabilities):
      self._updates(sample, probabilities, lambda gradient: gradient)

    _on_nothing(self._learner, alone, sample, probabilities)

  def _function(self, python: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(python, autograph=False, jit_compile=self._compiled)

  def _updates(self, sample, probabilities, meet) -> Results:
    if self._batches is None:
      self._make_variables(sample, probabilities)
    self._arrange(sample, probabilities)
    gradients, finites, priorities = [], [], []
    for update in range(self._learner.updates_per_call):
      gradient = self._gradient(tf.constant(update))
      common = meet(gradient)
      finite = self._finish(
        common.vector, common.stopped, common.statistics
      ).numpy()
      gradients.append(gradient)
      finites.append(finite)
      # As in `InGraph`.
      new = np.where(finite[:, None], gradient.priorities.numpy(), np.nan)
      priorities.append(new.T)
    metrics = {
      name: np.stack([gradient.metrics[name] for gradient in gradients])
      for name in self._learner.agent.metrics
    }
    known = None if self._weights is None else np.stack(priorities)
    return metrics, np.stack(finites), known

  def _make_variables(self, sample, probabilities) -> None:
    """For what `_arranged` makes of such samples."""
    learner = self._learner

    def arranged(sample, probabilities):
      return _arranged(learner, sample, probabilities)

    made = tf.function(arranged, autograph=False).get_concrete_function(
      sample, probabilities
    )
    batches, weights = tf.nest.map_structure(
      lambda x: x if x is None else tf.Variable(tf.zeros(x.shape, x.dtype)),
      made.structured_outputs,
    )

    def arrange(sample, probabilities):
      new_batches, new_weights = arranged(sample, probabilities)
      tf.nest.map_structure(lambda v, x: v.assign(x), batches, new_batches)
      if weights is not None:
        weights.assign(new_weights)

    self._batches, self._weights = batches, weights
    self._arrange = self._function(arrange)


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
  """On one update's share of what was arranged."""
  return learner.gradient(
    tf.nest.map_structure(lambda x: take(x, update), batches),
    None if weights is None else take(weights, update),
  )


def _on_nothing(
  learner: Any,
  call: Callable[..., Any],
  sample: Any,
  probabilities: Any,
) -> None:
  """A call on zeros of these specs; the learner stays as it is."""
  before = learner.save()
  specs = [sample] if probabilities is None else [sample, probabilities]
  zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
  call(*zeros, *[None] * (2 - len(specs)))
  learner.restore(before)


def importance_weights(probabilities: tf.Tensor, beta: float) -> tf.Tensor:
  """Weights `(1 / P)^beta` over each batch's largest: Schaul et al. 2016, 3.4.

  The size of the table is a common factor, so that the maximum cancels it.

  Args:
    probabilities: [..., B] with which the items were drawn, positive.
    beta: 0 corrects nothing, 1 all.

  Returns:
    [..., B], at most 1.
  """
  logs = -beta * tf.math.log(tf.maximum(probabilities, 1e-37))
  return tf.exp(logs - tf.reduce_max(logs, axis=-1, keepdims=True))
