"""The state of evolution strategies between generations (evolution.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
import zlib

import numpy as np
import tensorflow as tf

from murmuration.agents import evolution
from murmuration.agents import optimizers
from murmuration.agents import parameters
from murmuration.agents.networks import normalization

_PRIOR = 0.01  # observations of mean 0 and variance 1; starter code


class Strategy:
  """theta, and everything that the next theta depends on."""

  def __init__(
    self,
    config: evolution.Config,
    layout: parameters.Layout,
    theta: np.ndarray,
    table: np.ndarray,
  ):
    """Begins at `theta [D]`; `table` has the noise."""
    self._config = config
    self._layout = layout
    self._table = table
    self._optimizer = optimizers.make(config.optimizer)
    self.theta = np.array(theta, np.float32)
    self.generation = 0  # updates made
    self.place = evolution.perturbed(layout)  # slice of theta
    self.dim = self.place.stop - self.place.start
    self._slots = np.zeros((self._optimizer.slots, 1, self.dim), np.float32)
    self._moves = 0  # steps of the optimizer
    size = evolution.observation_size(layout)
    self._sums = evolution.Sums(_PRIOR, np.zeros(size), np.full(size, _PRIOR))

  @property
  def key(self) -> int:
    """Identifies a generation, also among different training histories."""
    return zlib.crc32(self.theta.tobytes(), self.generation)

  def update(
    self, indices: np.ndarray, returns: np.ndarray, sums: tuple | None = None
  ) -> dict[str, float]:
    """Completes a generation and returns metrics to log.

    Args:
      indices: of the noise in the table, [P].
      returns: [P, 2], of + and -; a pair with a non-finite return is left out.
      sums: `Sums` of observations, or an equal tuple.
    """
    config = self._config
    self.generation += 1
    returns = np.asarray(returns, np.float64)
    known = np.isfinite(returns).all(axis=1)
    indices, returns = indices[known], returns[known]
    flat = not len(returns) or bool(np.all(returns == returns.flat[0]))
    size = 0.0
    if len(returns) and not (flat and config.skip_flat):
      noise = (self._table[i : i + self.dim] for i in indices)
      scale = config.sigma if config.divide_by_sigma else 1.0
      g = evolution.gradient(evolution.centred_ranks(returns), noise, scale)
      size = float(np.linalg.norm(g))
      self._climb(
        evolution.ascent(g, self.theta[self.place], config.weight_decay)
      )
    if sums is not None and sums[0] and len(self._sums.first):
      self._sums = self._sums.plus(evolution.Sums(*sums))
      self._normalize()
    found = {
      'gradient_norm': size,
      'theta_norm': float(np.linalg.norm(self.theta[self.place])),
      'flat': float(flat),
      'dropped_pairs': float(np.count_nonzero(~known)),
    }
    if len(returns):
      found.update(
        return_mean=float(returns.mean()),
        return_max=float(returns.max()),
        return_min=float(returns.min()),
      )
    return found

  def _climb(self, direction: np.ndarray) -> None:
    """Makes one ascent step; the optimizer descends along -direction."""
    self._moves += 1
    slots, step = self._optimizer.direction(
      tuple(tf.constant(slot) for slot in self._slots),
      tf.constant(-direction[None], tf.float32),
      tf.constant([[self._moves]], tf.float32),
    )
    for own, slot in zip(self._slots, slots):
      own[:] = slot.numpy()
    # A new array, because callers may still hold the old one.
    theta = self.theta.copy()
    theta[self.place] -= (
      np.float32(self._config.learning_rate) * step.numpy()[0]
    )
    self.theta = theta

  def _normalize(self) -> None:
    """Writes the statistics to the variables of the agent's normalizer."""
    mean, variance = self._sums.moments()
    memory = min(self._sums.number / normalization.CAPACITY, 1.0)
    theta = self.theta.copy()
    views = {
      variable.name: view
      for variable, view in zip(
        self._layout.variables, self._layout.unpack(theta)
      )
    }
    views['normalizer/mean'][:] = mean
    views['normalizer/variance'][:] = variance
    views['normalizer/memory'][:] = memory
    self.theta = theta

  def save(self) -> dict[str, Any]:
    """The state that the strategy resumes from, in arrays that stay fixed."""
    return {
      'theta': self.theta,
      'slots': self._slots.copy(),
      'numbers': np.array([self.generation, self._moves], np.int64),
      'observed': np.array(self._sums.number),
      'observations': np.stack([self._sums.first, self._sums.second]),
    }

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the arrays of `save`.

    Raises:
      ValueError: they belong to another network or optimizer.
    """
    own = self.save()
    for name, array in own.items():
      found = None if name not in arrays else np.shape(arrays[name])
      if found != array.shape:
        raise ValueError(
          f'The checkpoint has {name} of shape {found}, this run '
          f'{array.shape}: it is of another network, optimizer or '
          'environment. Resume it as it was started.'
        )
    self.theta = np.array(arrays['theta'])
    self._slots = np.array(arrays['slots'])
    self.generation, self._moves = (int(n) for n in arrays['numbers'])
    self._sums = evolution.Sums(
      float(arrays['observed']), *np.array(arrays['observations'])
    )
