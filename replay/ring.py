"""A replay buffer that is repeatable: the same seed draws the same items.

Reverb's samplers take no seed, and their draws depend on how far ahead its
threads have read. This is a ring of items inside the process that writes and
samples, for runs that must be repeatable (`run.deterministic`). It has no
threads, no limiter and no server, so the inspector does not see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

import numpy as np

from murmuration.replay import priorities as priorities_lib
from murmuration.replay import sampler


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
  ):
    """Makes an empty ring.

    Args:
      max_size: items kept.
      batch_size: items in a sample.
      shape, dtype: of an item.
      seed: seed of the draws.
      exponent: draws are in proportion to priority^exponent; None: uniform.
    """
    # The system allocates this memory only as it is written.
    self._rows = np.empty((max_size, *shape), dtype)
    self._priorities = np.zeros(max_size)
    self._powers = np.zeros(max_size)  # priority^exponent
    self._sampled = np.zeros(max_size, np.int32)
    self._batch_size = batch_size
    self._exponent = exponent
    self._rng = np.random.default_rng(seed)
    self._count = 0  # inserts; also the key of the next item

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
    if self._exponent is None:
      places = self._rng.integers(0, size, number)
      probabilities = np.full(number, 1.0 / size)
    else:
      powers = self._powers[:size]
      if not powers.any():
        powers = np.ones(size)  # as Reverb does
      bounds = np.cumsum(powers)
      drawn = self._rng.random(number) * bounds[-1]
      places = np.searchsorted(bounds, drawn, 'right')
      probabilities = powers[places] / bounds[-1]
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
    self._powers[places] = priorities ** (self._exponent or 0.0)


def pack_random(rng: np.random.Generator) -> np.ndarray:
  """The state of a generator as an array that can be saved, uint8 [...]."""
  state = json.dumps(rng.bit_generator.state)
  return np.frombuffer(state.encode(), np.uint8)


def unpack_random(rng: np.random.Generator, packed: np.ndarray) -> None:
  """Restores the state of a generator from `pack_random`."""
  rng.bit_generator.state = json.loads(packed.tobytes())
