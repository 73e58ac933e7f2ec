"""TFLearner: sample, gradient, exchange, apply, for P members at once.

    sample -> gradient(sample) -> Gradient -> exchange.apply(learner, gradient)

One TensorFlow call makes several updates, because a call costs as much as the
arithmetic of a small network. Members are independent: each has its own
parameters, target network, learning rate, optimizer state and skip counter, and
a member with a non-finite gradient skips its update alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import logging
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import feeds
from murmuration.agents import gradient_step
from murmuration.agents import member_losses
from murmuration.agents import parameters
from murmuration.agents import updates
from murmuration.agents.exchange import base as exchange_base

_logger = logging.getLogger(__name__)
MAX_SKIPPED_IN_A_ROW = 100
# Updates at a rate of 0 are reported beyond this multiple of `rate_end`. A
# budget that fits exceeds it slightly, because calls and rollouts are whole.
_LATE = 1.02


class LearnerFault(RuntimeError):
  """Learning cannot go on: too many non-finite updates in a row."""


class StepResult(NamedTuple):
  """The result of one `TFLearner.step`."""

  updates: int  # learner steps of each member, skipped ones included
  metrics: dict[str, np.ndarray]  # name to [P], pooled over the updates
  skipped: np.ndarray  # updates skipped for non-finite gradients, int [P]
  broken: np.ndarray  # whether a member's parameters are not finite, bool [P]
  # Shaped like the sample's probabilities; None if it had none.
  priorities: np.ndarray | None = None


def assign(
  variables: dict[str, tf.Variable], arrays: dict[str, np.ndarray]
) -> None:
  """Assigns saved arrays; ValueError if one is missing or of another shape."""
  for name, variable in variables.items():
    got = arrays.get(name)
    if got is None or got.shape != tuple(variable.shape):
      raise ValueError(
        f'The saved learner has {name} of shape '
        f'{None if got is None else got.shape}; this one needs '
        f'{tuple(variable.shape)}. Resume with the same config.'
      )
  for name, variable in variables.items():
    variable.assign(arrays[name])


class TFLearner:
  """Holds `theta [P, D]` and everything that changes it."""

  def __init__(
    self,
    agent: base.Agent,
    theta: np.ndarray,
    learning_rates: Sequence[float],
    exchange: exchange_base.Exchange,
    feed: feeds.Feed,
    updates_per_call: int = 1,
    seed: int = 0,
  ):
    """Makes a learner.

    Args:
      agent: to be trained.
      theta: initial parameters [P, D].
      learning_rates: of each member, [P].
      exchange: how parameters move besides the gradient.
      feed: brings a sample into the form that `agent.loss` takes.
      updates_per_call: learner steps in one `step`.
      seed: of the exchange's random draws.
    """
    theta = np.asarray(theta, np.float32)
    if theta.ndim != 2 or theta.shape[1] != agent.layout.size:
      raise parameters.LayoutMismatch(
        f'theta has shape {theta.shape}; needed [P, {agent.layout.size}].'
      )
    if len(learning_rates) != len(theta):
      raise ValueError(
        f'Got {len(learning_rates)} learning rates for {len(theta)} members.'
      )
    self.agent = agent
    self.num_members = len(theta)
    self.updates_per_call = updates_per_call
    self.theta = tf.Variable(theta, name='theta')
    self.target = tf.Variable(theta, name='target')
    self._slots = [
      tf.Variable(tf.zeros_like(theta), name=f'slot_{i}')
      for i in range(agent.optimizer.slots)
    ]
    counts = 1 if agent.delayed is None else 2
    self._steps = tf.Variable(np.zeros((self.num_members, counts), np.int64))
    self._updates = tf.Variable(0, dtype=tf.int64)
    # Members whose gradients are ignored for the rest of this call.
    self._stopped = tf.Variable(np.zeros(self.num_members, bool))
    self._rates = tf.constant(
      np.asarray(learning_rates, np.float32)[:, None], name='learning_rates'
    )
    self._feed = feed
    self._exchange = exchange
    self._known: np.ndarray | None = None  # theta, after the last call
    self._skipped_in_a_row = np.zeros(self.num_members, np.int64)
    self._said_late = False
    exchange.setup(self, seed)
    # Not for more members: XLA multiplies stacked small matrices slowly on a
    # CPU (16 members took 60 times as long).
    compiled = agent.compiled and self.num_members == 1
    self._call = updates.make(self, exchange, compiled)

  @property
  def updates(self) -> int:
    """Learner steps made so far, including restored ones."""
    return int(self._updates.numpy())

  def trace(self, sample: Any, probabilities: Any = None) -> None:
    """Builds the call for samples of these specs, without updating anything.

    The first `step` then costs no more than later ones. `sample` is a nest of
    tf.TensorSpec, `probabilities` is one, or None for uniform replay.
    """
    self._call.trace(sample, probabilities)

  def step(
    self, sample: Any, probabilities: tf.Tensor | None = None
  ) -> StepResult:
    """Makes `updates_per_call` updates.

    Args:
      sample: input of the feed, for `updates_per_call` (U) updates.
      probabilities: with which prioritized replay drew each transition,
        float32 [U * B, P], or [U * B] for one member; None for uniform replay.

    Raises:
      LearnerFault: a member skipped MAX_SKIPPED_IN_A_ROW updates in a row.
    """
    self._known = None
    metrics, finite, priorities, theta = self._call(sample, probabilities)
    self._known = theta
    skipped = (~finite).sum(axis=0)
    self._count_skips(finite)
    self._say_if_late()
    broken = np.zeros(self.num_members, bool)
    if skipped.any():
      broken = ~np.isfinite(self.parameters()).all(axis=1)
    pooled = {
      name: values[0] if len(values) == 1 else getattr(np, how)(values, axis=0)
      for (name, how), values in zip(
        self.agent.metrics.items(), metrics.values()
      )
    }
    return StepResult(
      self.updates_per_call,
      pooled,
      skipped,
      broken,
      None
      if priorities is None or probabilities is None
      else np.reshape(priorities, np.shape(probabilities)),
    )

  def gradient(
    self, batch: Any, importance: tf.Tensor | None = None
  ) -> base.Gradient:
    """The gradient of all members on one update's batch, leading axis [P].

    `importance` has weights of prioritized sampling, [P, B]; None: all 1.
    """
    experience = self._feed.unpack(batch)
    theta = self.theta.read_value()
    out, vector = member_losses.of_all(
      self.agent, theta, self.target.read_value(), experience, importance
    )
    stopped = tf.logical_or(self._stopped.read_value(), out.stopped)
    return base.Gradient(
      vector,
      out.priorities,
      {**out.metrics, 'stopped_updates': tf.cast(stopped, tf.float32)},
      stopped,
      out.statistics,
    )

  def apply(
    self,
    gradient: base.Gradient,
    combine: gradient_step.Combine | None = None,
    operands: Sequence[tf.Tensor] = (),
  ) -> gradient_step.Step:
    """One update: theta <- theta - rate * u, or as `combine` says.

    Called by exchanges while the update is traced.

    Args:
      gradient: of all members.
      combine: pure function (theta, step, *operands) -> displacement [P, D],
        where step is -rate * u; None takes the step as it is.
      operands: tensors that `combine` needs: random draws and variables.
    """
    made = gradient_step.make(self.agent, combine)(
      gradient.vector,
      gradient.stopped,
      self.theta.read_value(),
      tuple(slot.read_value() for slot in self._slots),
      self._steps.read_value(),
      self._rates,
      self._updates.read_value(),
      tuple(operands),
    )
    self.theta.assign(made.theta)
    for slot, value in zip(self._slots, made.slots):
      slot.assign(value)
    self._steps.assign(made.counts)
    return made

  def arrange(self, sample: Any) -> Any:
    """Batches of a call's updates, leading axes [U, P]. In the graph."""
    self._stopped.assign(tf.zeros_like(self._stopped))
    return self._feed.arrange(
      sample, self.updates_per_call, self.num_members, self.theta.read_value()
    )

  def finish(self, gradient: base.Gradient) -> tf.Tensor:
    """Completes an update, in the graph; bool [P], False where skipped."""
    self._stopped.assign(gradient.stopped)
    finite = self._exchange.apply(self, gradient)
    self._take_statistics(gradient.statistics, finite)
    self._follow_with_target()
    return finite

  def parameters(self) -> np.ndarray:
    """`theta [P, D]`, cached. Callers must not modify the array."""
    if self._known is None:
      self._known = self.theta.numpy()
    return self._known

  def forget(self) -> None:
    """Says that theta has changed, so that `parameters` reads it again."""
    self._known = None

  def set_parameters(self, theta: np.ndarray) -> None:
    """Sets `theta [P, D]`; target networks and optimizer state stay."""
    theta = np.array(theta, np.float32)
    # `assign` takes three times as long, and some exchanges call this after
    # each update.
    tf.raw_ops.AssignVariableOp(
      resource=self.theta.handle, value=theta, validate_shape=True
    )
    self._known = theta

  def set_member(self, member: int, theta: np.ndarray) -> None:
    """Sets `theta [D]` and target of one member, and resets its optimizer."""
    row = np.asarray(theta, np.float32)[None]
    index = [[member]]
    self._known = None
    for variable, value in (
      (self.theta, row),
      (self.target, row),
      *((slot, np.zeros_like(row)) for slot in self._slots),
      (self._steps, tf.zeros_like(self._steps[:1])),
    ):
      variable.assign(tf.tensor_scatter_nd_update(variable, index, value))
    self._exchange.reset_member(member)
    self._skipped_in_a_row[member] = 0

  def save(self) -> dict[str, np.ndarray]:
    """The state that learning resumes from, as arrays."""
    return {name: v.numpy() for name, v in self._variables().items()}

  def restore(self, arrays: dict[str, np.ndarray]) -> None:
    """Restores the arrays of `save`.

    Variables of the exchange that are missing start afresh, because a resumed
    run may have new settings, such as inertia.

    Raises:
      ValueError: an array is missing or has another shape.
    """
    optional = self._exchange.variables()
    self._known = None
    variables = self._variables().items()
    assign(
      {n: v for n, v in variables if n in arrays or n not in optional}, arrays
    )

  def _variables(self) -> dict[str, tf.Variable]:
    named = {
      'theta': self.theta,
      'target': self.target,
      'steps': self._steps,
      'updates': self._updates,
    }
    named.update({f'slot_{i}': slot for i, slot in enumerate(self._slots)})
    named.update(self._exchange.variables())
    return named

  def _take_statistics(
    self, statistics: dict[str, tf.Tensor], finite: tf.Tensor
  ) -> None:
    """Writes parameters that are not learned by gradient into theta."""
    if not statistics:
      return
    unknown = sorted(
      {*statistics} - {v.name for v in self.agent.layout.variables}
    )
    if unknown:
      raise ValueError(
        f'The loss of {self.agent.name} gives statistics for {unknown}, but '
        'its layout has no such variables.'
      )
    layout, rows = self.agent.layout, self.num_members
    theta = self.theta.read_value()
    parts = tf.split(theta, layout.sizes, axis=1)
    for index, variable in enumerate(layout.variables):
      if variable.name in statistics:
        new = tf.reshape(statistics[variable.name], (rows, variable.size))
        sound = finite[:, None] & tf.reduce_all(
          tf.math.is_finite(new), axis=1, keepdims=True
        )
        parts[index] = tf.where(sound, new, parts[index])
    self.theta.assign(tf.concat(parts, axis=1))

  def _follow_with_target(self) -> None:
    rule = self.agent.target_update
    before, after = self._exchange.passed(self._updates.assign_add(1))
    # More than one if the updates of other learners count too.
    times = after // rule.period - before // rule.period

    def follow():
      theta = self.theta.read_value()
      if rule.tau != 1.0:
        kept = tf.constant(1 - rule.tau)
        many = kept ** tf.cast(times, tf.float32)
        new = tf.where(times > 1, 1 - many, rule.tau)
        kept = tf.where(times > 1, many, kept)
        theta = new * theta + kept * self.target.read_value()
      self.target.assign(theta)
      return tf.constant(True)

    tf.cond(times > 0, follow, lambda: tf.constant(False))

  def _count_skips(self, finite: np.ndarray) -> None:
    if finite.all():
      self._skipped_in_a_row[:] = 0
      return
    for row in finite:
      self._skipped_in_a_row = np.where(row, 0, self._skipped_in_a_row + 1)
      worst = int(self._skipped_in_a_row.max())
      if worst >= MAX_SKIPPED_IN_A_ROW:
        raise LearnerFault(
          f'Member {int(self._skipped_in_a_row.argmax())} skipped {worst} '
          'updates in a row because its gradient is not finite. Lower '
          f'{" and ".join(self.agent.rate_settings)}, or check the rewards of '
          'the environment, or the loss if it is of yours.'
        )

  def _say_if_late(self) -> None:
    """Warns once if updates are made at a learning rate of 0."""
    end = self.agent.rate_end
    if end is None or self._said_late:
      return
    made = self._exchange.scheduled(self.updates)
    if made <= _LATE * end.update:
      return
    self._said_late = True
    _logger.warning(
      'The learning rates are 0 since learner step %d (%s=%d), and this is '
      'step %d: gradients move nothing any more. Raise %s with '
      'run.steps_per_agent, or set it to None, and rates do not fall.',
      end.update,
      end.setting,
      end.value,
      made,
      end.setting,
    )
