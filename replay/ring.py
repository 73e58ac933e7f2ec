"""Replay in the memory of the process that writes and samples.

It has no server, threads or limiter, so a sample costs less than through
Reverb. Draws follow from a seed, so a run can be repeatable
(`run.deterministic`). The inspector does not see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

import numpy as np

from murmuration.replay import priorities as priorities_lib
from murmuration.replay import sampler

_BRANCHES = 32  # of the tree of weights


class Weights:
  """Weights of places, drawn in proportion in O(log size).

  A tree of sums. Each level has rows of _BRANCHES numbers, and the sum of a row
  is a number of the level above.
  """

  def __init__(self, size: int):
    """Makes `size` weights of 0."""
    self._levels: list[np.ndarray] = []
    while not self._levels or len(self._levels[-1]) > 1:
      size = -(-size // _BRANCHES)
      self._levels.append(np.zeros((size, _BRANCHES)))

  @property
  def total(self) -> float:
    return float(self._levels[-1].sum())

  def set(self, places: np.ndarray, weights: np.ndarray) -> None:
    """Sets weights [M] >= 0 of places [M]; of a place twice, the last."""
    self._levels[0].reshape(-1)[places] = weights
    for below, above in zip(self._levels, self._levels[1:]):
      places = places // _BRANCHES
      above.reshape(-1)[places] = below[places].sum(axis=1)

  def get(self, places: np.ndarray) -> np.ndarray:
    return self._levels[0].reshape(-1)[places]

  def draw(self, numbers: np.ndarray) -> np.ndarray:
    """Places [N] for uniform numbers [N] in [0, 1); `total` must not be 0."""
    places = np.zeros(len(numbers), np.int64)
    rest = numbers * self.total
    for level in reversed(self._levels):
      rows = level[places]
      sums = np.cumsum(rows, axis=1)
      child = np.sum(sums <= rest[:, None], axis=1)
      # Rounding must not lead past the last weight that is not 0.
      last = _BRANCHES - 1 - np.argmax(rows[:, ::-1] > 0.0, axis=1)
      child = np.minimum(child, last)
      every = np.arange(len(child))
      rest = rest - (sums[every, child] - rows[every, child])
      places = places * _BRANCHES + child
    return places


class Ring:
  """Items of one table; the oldest leaves when it is full.

  It has the interface of `writer.ItemWriter` for an adder, and those of a
  sampler and a priority writer for a learner.

  Attributes:
    lost, dropped: items and priorities given up; always 0.
    not_finite: items removed; always 0, because only this process writes, and
      its environments or the reader of the data set have checked the items.
  """

  lost = 0
  dropped = 0
  not_finite = 0
  chunk_length = 1  # as of an ItemWriter: rows written together

  def __init__(
    self,
    max_size: int,
    batch_size: int,
    shape: Sequence[int],
    dtype: Any,
    seed: int,
    exponent: float | None = None,
    layout: str = '',
  ):
    """Makes an empty ring.

    Args:
      max_size: items kept.
      batch_size: items in a sample.
      shape, dtype: of an item.
      seed: seed of the draws.
      exponent: draws are in proportion to priority^exponent; None: uniform.
      layout: what an item holds (`packing.TransitionLayout.name`), for readers
        of a checkpoint.
    """
    # The system allocates this memory only as it is written.
    self._rows = np.empty((max_size, *shape), dtype)
    self._priorities = np.zeros(max_size)
    self._weights = None if exponent is None else Weights(max_size)
    self._sampled = np.zeros(max_size, np.int32)
    self._batch_size = batch_size
    self._exponent = exponent
    self._rng = np.random.default_rng(seed)
    self._count = 0  # inserts; also the key of the next item
    self._layout = layout

  def reseed(self, seed: int) -> None:
    self._rng = np.random.default_rng(seed)

  def __len__(self) -> int:
    return min(self._count, len(self._rows))

  def extend(self, rows: np.ndarray, priorities: Sequence[float]) -> None:
    """Writes rows [M, ...] with priorities [M]."""
    rows = np.reshape(rows, (len(rows), *self._rows.shape[1:]))
    places = np.arange(self._count, self._count + len(rows)) % len(self._rows)
    self._rows[places] = rows
    self._prioritize(places, np.asarray(priorities, float))
    self._sampled[places] = 0
    self._count += len(rows)

  def flush(self, timeout_s: float = 0.0) -> None:
    """Does nothing: no writes are pending."""

  def close(self) -> None:
    """Does nothing."""

  def __next__(self) -> sampler.Sample:
    """Draws a sample, with replacement."""
    import tensorflow as tf  # a ring is made before TensorFlow is set up

    size, number = len(self), self._batch_size
    if self._weights is None or not self._weights.total:  # as Reverb does
      places = self._rng.integers(0, size, number)
      probabilities = np.full(number, 1.0 / size)
    else:
      places = self._weights.draw(self._rng.random(number))
      probabilities = self._weights.get(places) / self._weights.total
    np.add.at(self._sampled, places, 1)
    # Key of the newest insert into each place.
    keys = places + (self._count - 1 - places) // len(self._rows) * len(
      self._rows
    )
    return sampler.Sample(
      data=tf.constant(self._rows[places]),
      keys=keys.astype(np.uint64),
      probabilities=probabilities.astype(np.float32),
      table_sizes=np.full(number, size, np.int64),
      shards=np.zeros(number, np.int32),
      times_sampled=self._sampled[places],
    )

  def give_back(self, sample: sampler.Sample, priorities: np.ndarray) -> None:
    """Sets new priorities [N] of a sample's items; NaN leaves the old one."""
    known = ~np.isnan(priorities)
    found, _ = priorities_lib.repair(np.asarray(priorities, float)[known])
    keys = sample.keys[known].astype(np.int64)
    there = keys >= self._count - len(self._rows)
    self._prioritize(keys[there] % len(self._rows), found[there])

  def save(self) -> dict[str, np.ndarray]:
    """Items, priorities, counts and the state of the random generator."""
    size = len(self)
    return {
      'rows': self._rows[:size],
      'priorities': self._priorities[:size],
      'sampled': self._sampled[:size],
      'count': np.array(self._count),
      'layout': np.array(self._layout),
      'random': pack_random(self._rng),
    }

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the arrays of `save`; of a larger ring, only the newest items.

    Raises:
      ValueError: the items have another shape.
    """
    rows, count = arrays['rows'], int(arrays['count'])
    if rows.shape[1:] != self._rows.shape[1:]:
      raise ValueError(
        f'The saved replay has items {rows.shape[1:]}; this one has '
        f'{self._rows.shape[1:]}. Resume with the same config.'
      )
    keys = np.arange(count - len(rows), count)[-len(self._rows) :]
    source = keys % len(rows)
    # A ring that is not full begins with its oldest item.
    self._count = count if len(keys) == len(self._rows) else len(keys)
    places = np.arange(self._count - len(keys), self._count) % len(self._rows)
    if 'priorities' in arrays:
      priorities = arrays['priorities']
    else:  # an older version saved the powers, here taken for this exponent's
      priorities = arrays['powers'] ** (1.0 / (self._exponent or 1.0))
    self._rows[places] = rows[source]
    self._prioritize(places, priorities[source])
    self._sampled[places] = arrays['sampled'][source]
    unpack_random(self._rng, arrays['random'])

  def _prioritize(self, places: np.ndarray, priorities: np.ndarray) -> None:
    self._priorities[places] = priorities
    if self._weights is not None:
      self._weights.set(places, priorities**self._exponent)


def in_order(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
  """Places of the items of `save`, oldest first, int [N]."""
  size, count = len(arrays['rows']), int(arrays['count'])
  return np.arange(count - size, count) % max(size, 1)


def pack_random(rng: np.random.Generator) -> np.ndarray:
  """The state of a generator as an array that can be saved, uint8 [...]."""
  state = json.dumps(rng.bit_generator.state)
  return np.frombuffer(state.encode(), np.uint8)


def unpack_random(rng: np.random.Generator, packed: np.ndarray) -> None:
  """Restores the state of a generator from `pack_random`."""
  rng.bit_generator.state = json.loads(packed.tobytes())
