"""One update of a slice of theta, in NumPy, as a shard makes it.

The step is that of gradient_step.py for one member, after gradient clipping,
but that a gradient of 0 is applied too. It is elementwise, so K slices updated
separately equal one updated vector. NumPy is used because calling a TensorFlow
function costs more than the arithmetic of a small slice. An optimizer that is
not one of optimizers.py may return tensors.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import optimizers

_AHEAD = 1024  # updates for which schedules are computed in advance


def places(size: int, count: int) -> list[slice]:
  """Splits `size` parameters into `count` contiguous slices.

  Slice sizes differ by at most 1.

  Raises:
    ValueError: there are more slices than parameters.
  """
  if count > size:
    raise ValueError(
      f'{count} slices of {size} parameters: some would be empty. Use fewer '
      'shards.'
    )
  parts = np.array_split(range(size), count)
  return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


class Verdict(NamedTuple):
  """Whether a gradient was applied."""

  accepted: bool
  staleness: int  # updates of the slice since its parameters were pulled


class Slice:
  """A slice of theta, its optimizer's state, and its number of updates."""

  def __init__(
    self,
    theta: np.ndarray,
    optimizer: optimizers.Optimizer,
    rates: float | np.ndarray,
    max_staleness: int | None = None,
    delayed: np.ndarray | None = None,
    factor: Callable[[int], float] | None = None,
    due: Callable[[int], bool] = lambda update: True,
  ):
    """Makes a slice of version 0.

    Args:
      theta: initial parameters [n]; copied.
      optimizer: the agent's.
      rates: learning rate, [] or [n].
      max_staleness: largest accepted staleness in updates; None: no limit.
      delayed: parameters that move only in updates that are `due`, bool [n].
      factor: of a number of updates before, to a factor on the rate; None: 1.
      due: whether update i, from 0, moves `delayed` parameters.
    """
    self.theta = np.array(theta)  # [n], changed in place
    self.version = 0  # accepted updates
    self._optimizer = optimizer
    self._slots = [np.zeros_like(self.theta) for _ in range(optimizer.slots)]
    self._rates = rates
    self._max_staleness = max_staleness
    self._delayed = delayed
    self._late = 0  # updates that moved `delayed` parameters
    self._factor = factor
    self._due = due

  def apply(
    self,
    gradient: np.ndarray,
    pulled: int,
    scheduled: int | None = None,
  ) -> Verdict:
    """Makes one update if the gradient [n] is finite and not too old.

    Args:
      gradient: of one learner.
      pulled: the version of the parameters that it was computed at. One that
        the slice has not reached stems from before a restart and is rejected.
      scheduled: where the schedule of the rates is; None: at the updates made.
    """
    staleness = self.version - pulled
    limit = math.inf if self._max_staleness is None else self._max_staleness
    accepted = 0 <= staleness <= limit and bool(np.isfinite(gradient).all())
    if accepted:
      self._apply(gradient, self.version if scheduled is None else scheduled)
    return Verdict(accepted, staleness)

  def _apply(self, gradient: np.ndarray, scheduled: int) -> None:
    made = self.version
    self.version += 1
    slots, u = self._direction(gradient, self.version)
    if self._delayed is not None:
      late = np.zeros_like(u)
      if self._due(made):
        self._late += 1
        _, late = self._direction(gradient, self._late)
      else:
        both = zip(self._slots, slots)
        slots = [np.where(self._delayed, old, new) for old, new in both]
      u = np.where(self._delayed, late, u)
    self._slots = slots
    u = u * self._rates
    if self._factor is not None:
      u *= self._factor(scheduled)
    self.theta -= u

  def _direction(
    self, gradient: np.ndarray, count: int
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """The next slots, and u."""
    slots, u = self._optimizer.direction(tuple(self._slots), gradient, count)
    return [np.asarray(slot) for slot in slots], np.asarray(u)

  def save(self) -> dict[str, Any]:
    """The state that the slice resumes from, in arrays that stay fixed."""
    counts = np.array([self.version, self._late])
    slots = {f'slot_{i}': slot for i, slot in enumerate(self._slots)}
    return {'theta': self.theta.copy(), 'counts': counts, **slots}

  def restore(self, arrays: dict[str, np.ndarray]) -> None:
    """Restores the arrays of `save`.

    Raises:
      ValueError: they belong to another slice.
    """
    for name, array in self.save().items():
      if name not in arrays or arrays[name].shape != array.shape:
        raise ValueError(
          f'The saved shard has no {name} of shape {array.shape}. Resume with '
          'the same config, and as many shards.'
        )
    self.theta[:] = arrays['theta']
    self._slots = [arrays[f'slot_{i}'] for i in range(len(self._slots))]
    self.version, self._late = map(int, arrays['counts'])


def of(
  agent: base.Agent,
  theta: np.ndarray,
  place: slice,
  max_staleness: int | None = None,
) -> Slice:
  """Makes the slice `place` of theta [D], for an agent of one member."""
  rates: Any = agent.learning_rate
  if agent.learning_rate_scale is not None:
    rates = (rates * agent.learning_rate_scale[place]).astype(np.float32)
  falls = agent.rate_factor(tf.constant(0, tf.int64)) is not None
  return Slice(
    theta[place],
    agent.optimizer,
    rates,
    max_staleness,
    None if agent.delayed is None else agent.delayed[place],
    _Schedule(agent.rate_factor) if falls else None,
    _Schedule(agent.due),
  )


class _Schedule:
  """A TensorFlow schedule, evaluated for many updates at once."""

  def __init__(self, function: Callable[[tf.Tensor], Any]):
    self._function = tf.function(
      lambda first: tf.map_fn(
        function,
        first + tf.range(_AHEAD, dtype=tf.int64),
        fn_output_signature=tf.type_spec_from_value(
          function(tf.constant(0, tf.int64))
        ),
      ),
      autograph=False,
    )
    self._first = -_AHEAD
    self._known: list[Any] = []

  def __call__(self, update: int) -> Any:
    at = update - self._first
    if not 0 <= at < _AHEAD:
      self._first, at = update, 0
      found = self._function(tf.constant(update, tf.int64))
      self._known = found.numpy().tolist()
    return self._known[at]
