"""Drives a stock `acme.Learner` as TFLearner is driven (learner.py).

A stock learner pulls its batches from an iterator inside its own tf.function,
pushes priorities to a Reverb client and metrics to a logger, and exposes only
the variables that actors need. This module provides all of these: the iterator
reads what `step` was given, the client and the logger store what they receive,
and the variables are found in the learner's modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import local
from murmuration.replay import packing

# Columns of a learner's log row that come from Acme's counter.
_COUNTS = ('steps', 'walltime')


class AcmeLearner:
  """A stock learner of one member, with the interface of TFLearner."""

  def __init__(
    self,
    agent: Any,
    theta: np.ndarray,
    learning_rates: Sequence[float],
    exchange: exchange_base.Exchange,
    feed: feeds.Feed,
    updates_per_call: int = 1,
    seed: int = 0,
  ):
    """Makes a learner from the arguments of TFLearner.

    A stock learner has its own initial parameters and learning rates: only the
    shape of `theta`, [1, D], is used, and `learning_rates` are ignored.

    Raises:
      ValueError: there are several members, `exchange` is not `Local`, or
        `feed` is not `feeds.Transitions`.
    """
    if np.shape(theta) != (1, agent.layout.size):
      raise ValueError(
        f'theta has shape {np.shape(theta)}, but a stock Acme learner has one '
        f'member: needed (1, {agent.layout.size}). Run it under actor_learner.'
      )
    if not isinstance(exchange, local.Local):
      raise ValueError(
        f'{type(exchange).__name__} moves parameters between learners, and a '
        'stock Acme learner gives no gradient away. Set actors.num_learners=1.'
      )
    if not isinstance(feed, feeds.Transitions):
      raise ValueError(
        f'A stock Acme learner here takes transitions, not {type(feed)}.'
      )
    self.agent = agent
    self.num_members = 1
    self.updates_per_call = updates_per_call
    self.updates = 0
    self._batches = Batches(feed.layout, feed.batch_size, updates_per_call)
    self._priorities = _Priorities(updates_per_call * feed.batch_size)
    self._log = _Log()
    tf.random.set_seed(seed)
    self._learner = agent.make_learner(
      self._batches, self._priorities, self._log
    )
    self._variables: dict[str, tf.Variable] = {}
    self._finite: Any = None

  def trace(self, sample: Any, probabilities: Any = None) -> None:
    """Builds the learner's step and leaves its state unchanged."""
    self._complete()

  def step(
    self, sample: Any, probabilities: Any = None
  ) -> learner_lib.StepResult:
    """Makes `updates_per_call` updates; see `TFLearner.step`.

    Raises:
      LearnerFault: replay is prioritized, but the learner gives no priorities.
    """
    self._complete()
    self._batches.put(sample, probabilities)
    self._priorities.forget()
    for _ in range(self.updates_per_call):
      self._learner.step()
    self.updates += self.updates_per_call
    priorities, skipped = None, 0
    if probabilities is not None:
      priorities = self._priorities.found.astype(np.float32)
      unknown = ~np.isfinite(priorities)
      if unknown.all() and self._finite():
        raise learner_lib.LearnerFault(
          f'{type(self._learner).__name__} gave no finite priority, and replay '
          'is prioritized. Set agent.prioritized=False, or give the learner '
          'the replay client of make_learner.'
        )
      by_update = unknown.reshape(self.updates_per_call, -1)
      skipped = int(by_update.any(axis=1).sum())
    return learner_lib.StepResult(
      self.updates_per_call,
      {name: np.array([value]) for name, value in self._log.last.items()},
      np.array([skipped]),
      np.array([not self._finite()]),
      priorities,
    )

  def parameters(self) -> np.ndarray:
    """A copy of what the stock learner serves to actors, [1, D]."""
    (variables,) = self._learner.get_variables([self.agent.served])
    return self.agent.layout.pack(variables)[None]

  def save(self) -> dict[str, np.ndarray]:
    """All variables of the learner, from which learning resumes."""
    self._complete()
    arrays = {name: v.numpy() for name, v in self._variables.items()}
    return {**arrays, 'updates': np.int64(self.updates)}

  def restore(self, arrays: dict[str, np.ndarray]) -> None:
    """Restores the arrays of `save`.

    Raises:
      ValueError: an array is missing or has another shape.
    """
    self._complete()
    learner_lib.assign(self._variables, arrays)
    self.updates = int(arrays['updates'])

  def _complete(self) -> None:
    """Creates the graph and optimizer slots, which only a first step creates.

    The step runs on a batch of zeros and is undone.
    """
    if self._variables:
      return
    before = {v.ref(): v.numpy() for v in _variables(self._learner).values()}
    self._learner.step()
    self._variables = _variables(self._learner)
    for variable in self._variables.values():
      # The slots of optimizers begin at zero.
      zero = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
      variable.assign(before.get(variable.ref(), zero))
    self._batches.rewind()
    numbers = [v for v in self._variables.values() if v.dtype.is_floating]
    self._finite = tf.function(
      lambda: tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(v)) for v in numbers]
      ),
      autograph=False,
    )


class Batches:
  """The batches of a call, as an iterator for a stock learner.

  A learner's tf.function calls `next` once, when it is traced. The graph
  therefore reads each batch from variables that hold the sample of the whole
  call.
  """

  def __init__(
    self, layout: packing.TransitionLayout, batch_size: int, updates: int
  ):
    """Makes `updates` batches of `batch_size` transitions, all zeros."""
    self._layout = layout
    self._shape = (updates, batch_size)
    self._packed = tf.Variable(
      tf.zeros((*self._shape, layout.width), layout.dtype)
    )
    self._probabilities = tf.Variable(tf.ones(self._shape, tf.float64))
    self._next = tf.Variable(0, dtype=tf.int64)

  def put(self, packed: Any, probabilities: Any = None) -> None:
    """Stores a sample [U * B, W] or [U * B, 1, W], and rewinds.

    Its probabilities are [U * B]; None: all equal.
    """
    self._packed.assign(tf.reshape(packed, self._packed.shape))
    if probabilities is not None:
      wanted = tf.cast(probabilities, tf.float64)
      self._probabilities.assign(tf.reshape(wanted, self._shape))
    self.rewind()

  def rewind(self) -> None:
    """Starts again at the first batch of the call."""
    self._next.assign(0)

  def __iter__(self) -> Iterator[Any]:
    return self

  def __next__(self) -> Any:
    from acme import types
    import reverb

    update = self._next.read_value()
    self._next.assign_add(1)
    fields = self._layout.unpack(tf.gather(self._packed, update))
    batch_size = self._shape[1]
    ones = tf.ones(batch_size, tf.int64)
    return reverb.ReplaySample(
      info=reverb.SampleInfo(
        # Positions in the call's sample, under which priorities come back.
        key=tf.cast(
          update * batch_size + tf.range(batch_size, dtype=tf.int64), tf.uint64
        ),
        probability=tf.gather(self._probabilities, update),
        table_size=ones,
        priority=tf.cast(ones, tf.float64),
        times_sampled=tf.cast(ones, tf.int32),
      ),
      data=types.Transition(
        observation=fields.o_tm1,
        action=fields.a_tm1,
        reward=fields.r_t,
        # As in Acme's adder: the n-step discount without its last gamma.
        discount=fields.d_t,
        next_observation=fields.o_t,
      ),
    )


class _Priorities:
  """Replaces a Reverb client; stores the priorities of a call's sample."""

  def __init__(self, size: int):
    self.found = np.full(size, np.nan)

  def forget(self) -> None:
    self.found.fill(np.nan)

  def mutate_priorities(self, table, updates=None, deletes=None) -> None:
    if updates:
      keys = np.fromiter(updates.keys(), np.int64, len(updates))
      self.found[keys] = np.fromiter(updates.values(), float, len(updates))


class _Log:
  """An Acme logger that keeps the scalars of the learner's last row."""

  def __init__(self):
    self._row: dict[str, Any] = {}

  @property
  def last(self) -> dict[str, float]:
    return {
      name: float(value)
      for name, value in self._row.items()
      if name not in _COUNTS and np.ndim(value) == 0
    }

  def write(self, data: Any) -> None:
    self._row = dict(data)

  def close(self) -> None:
    """Does nothing, because nothing is open."""


def _variables(learner: Any) -> dict[str, tf.Variable]:
  """The distinct variables of a learner's attributes, by name."""
  named, seen = {}, set()
  for attribute, value in sorted(vars(learner).items()):
    for index, variable in enumerate(_inside(value)):
      if variable.ref() not in seen:
        seen.add(variable.ref())
        named[f'{attribute.strip("_")}.{index}'] = variable
  return named


def _inside(value: Any) -> Iterator[tf.Variable]:
  """Variables of a module, an optimizer, or a nest of them."""
  if isinstance(value, tf.Variable):
    yield value
  elif isinstance(value, tf.Module):
    yield from value.variables
  elif isinstance(value, dict):
    for _, part in sorted(value.items()):
      yield from _inside(part)
  elif isinstance(value, list | tuple):
    for part in value:
      yield from _inside(part)
  elif isinstance(value, tf.keras.optimizers.legacy.Optimizer):
    yield from value.variables()
