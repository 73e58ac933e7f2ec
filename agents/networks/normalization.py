"""Observations on a common scale: running mean and variance, kept in theta.

The statistics are variables of the layout that no gradient moves, so they
travel with the policy to actors, evaluators and checkpoints. Each update adds
its batch (Chan et al. 1979, the parallel form of Welford's sums).

`memory` is the share of CAPACITY observations seen so far: it stays in [0, 1],
the scale of the other parameters. Once it is 1, old observations fade, and the
statistics follow the states that a newer policy visits.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

CAPACITY = 1_000_000  # observations
LIMIT = 10.0  # normalised observations are clipped to +- this
# Added to the variance: otherwise an entry that was constant for long would
# become very large when it changes.
_FLOOR = 1e-6


@dataclasses.dataclass(frozen=True)
class Normalizer:
  """Normalises flat observations of `size` numbers."""

  size: int
  name: str = 'normalizer'

  def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each variable."""
    return [
      (f'{self.name}/memory', (1,)),
      (f'{self.name}/mean', (self.size,)),
      (f'{self.name}/variance', (self.size,)),
    ]

  def initial(self) -> list[np.ndarray]:
    """Statistics before any observation: normalising then only clips."""
    return [
      np.zeros(1, np.float32),
      np.zeros(self.size, np.float32),
      np.ones(self.size, np.float32),
    ]

  def normalize(self, variables: Sequence[Any], observation: Any) -> Any:
    """Observations with mean 0 and variance 1, clipped to +- LIMIT.

    Variables are in the order of `shapes`: tensors `[*shape]` with observations
    [B, size], or arrays `[P, *shape]` with observations [P, K, size].
    """
    _, mean, variance = variables
    if isinstance(observation, np.ndarray):
      scaled = observation - mean[:, None]
      scaled /= np.sqrt(variance + _FLOOR)[:, None]
      return np.clip(scaled, -LIMIT, LIMIT, out=scaled)
    # The statistics are not learned by gradient.
    mean, variance = tf.stop_gradient(mean), tf.stop_gradient(variance)
    scaled = (observation - mean) * tf.math.rsqrt(variance + _FLOOR)
    return tf.clip_by_value(scaled, -LIMIT, LIMIT)

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    """`normalize` as operations of murmuration/portable.py, for `[*shape]`."""
    _, mean, variance = variables
    return [['normalize', mean, np.sqrt(variance + _FLOOR), LIMIT]]

  def updated(
    self,
    variables: Sequence[tf.Tensor],
    observation: tf.Tensor,
    weight: tf.Tensor,
  ) -> dict[str, tf.Tensor]:
    """The statistics after one more batch, by name.

    Variables are in the order of `shapes`, observations raw, [B, size], and
    `weight` [B] is 0 where there is no observation, else 1.
    """
    memory, mean, variance = variables
    count = tf.reduce_sum(weight)
    share = weight[:, None] / tf.maximum(count, 1.0)
    batch_mean = tf.reduce_sum(share * observation, axis=0)
    batch_variance = tf.reduce_sum(
      share * tf.square(observation - batch_mean), axis=0
    )
    added = count / CAPACITY
    # 0 / 0 if the first batch is empty: the statistics then stay.
    rate = tf.math.divide_no_nan(added, memory + added)
    delta = batch_mean - mean
    new = (
      tf.minimum(memory + added, 1.0),
      mean + rate * delta,
      (1 - rate) * variance
      + rate * batch_variance
      + rate * (1 - rate) * tf.square(delta),
    )
    return {
      name: tf.stop_gradient(value)
      for (name, _), value in zip(self.shapes(), new)
    }
