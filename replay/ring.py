"""A replay whose order is ours: the same seed draws the same items.

Reverb's samplers take no seed, and what they draw from depends on how far
ahead its threads have read. This is a ring of items in the process that writes
and samples, for runs that must be repeatable (`run.deterministic`). It has no
threads, no limiter and no server: the inspector does not see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

import numpy as np

from replay import priorities as priorities_lib
from replay import shards


class Ring:
  """Items of one table; the oldest leaves when it is full.

  Looks to an adder like `writer.ItemWriter`, and to a learner like the samples
  of a sampler and the writer of their priorities.

  Attributes:
    lost: items given up; none.
    dropped: priorities given up; none.
    not_finite: items removed; only this process writes, and what it writes
      was checked, by its environments or as a data set was read.
  """

  lost = 0
  dropped = 0
  not_finite = 0
  chunk_length = 1  # of an ItemWriter: what is written at once

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
      shape: of an item.
      dtype: of an item.
      seed: of what is drawn.
      exponent: items of priority p are drawn in proportion to p^exponent;
        None: all alike.
    """
    # Memory is taken when it is written to.
    self._rows = np.empty((max_size, *shape), dtype)
    self._powers = np.zeros(max_size)
    self._sampled = np.zeros(max_size, np.int32)
    self._batch_size = batch_size
    self._exponent = exponent
    self._rng = np.random.default_rng(seed)
    self._count = 0  # of inserts: the key of the next item

  def reseed(self, seed: int) -> None:
    """Has all further draws follow from another seed."""
    self._rng = np.random.default_rng(seed)

  def __len__(self) -> int:
    return min(self._count, len(self._rows))

  def extend(self, rows: np.ndarray, priorities: Sequence[float]) -> None:
    """Writes rows [M, ...] with priorities [M]."""
    rows = np.reshape(rows, (len(rows), *self._rows.shape[1:]))
    places = np.arange(self._count, self._count + len(rows)) % len(self._rows)
    self._rows[places] = rows
    self._powers[places] = self._power(np.asarray(priorities, float))
    self._sampled[places] = 0
    self._count += len(rows)

  def flush(self, timeout_s: float = 0.0) -> None:
    """Nothing waits."""

  def close(self) -> None:
    """Nothing to end."""

  def __next__(self) -> shards.Sample:
    """Draws a sample, with replacement."""
    import tensorflow as tf  # a ring is made before TensorFlow is set up

    size, number = len(self), self._batch_size
    if self._exponent is None:
      places = self._rng.integers(0, size, number)
      probabilities = np.full(number, 1.0 / size)
    else:
      bounds = np.cumsum(self._powers[:size])
      drawn = self._rng.random(number) * bounds[-1]
      places = np.minimum(np.searchsorted(bounds, drawn, 'right'), size - 1)
      probabilities = self._powers[places] / bounds[-1]
    np.add.at(self._sampled, places, 1)
    # The newest insert into each place.
    keys = places + (self._count - 1 - places) // len(self._rows) * len(
      self._rows
    )
    return shards.Sample(
      data=tf.constant(self._rows[places]),
      keys=keys.astype(np.uint64),
      probabilities=probabilities.astype(np.float32),
      table_sizes=np.full(number, size, np.int64),
      shards=np.zeros(number, np.int32),
      times_sampled=self._sampled[places],
    )

  def give_back(self, sample: shards.Sample, priorities: np.ndarray) -> None:
    """Takes new priorities [N] of a sample; NaN leaves those there are."""
    known = ~np.isnan(priorities)
    found, _ = priorities_lib.repair(np.asarray(priorities, float)[known])
    keys = sample.keys[known].astype(np.int64)
    there = keys >= self._count - len(self._rows)
    self._powers[keys[there] % len(self._rows)] = self._power(found[there])

  def save(self) -> dict[str, np.ndarray]:
    """All that it holds, and the state of its draws."""
    size = len(self)
    return {
      'rows': self._rows[:size],
      'powers': self._powers[:size],
      'sampled': self._sampled[:size],
      'count': np.array(self._count),
      'random': pack_random(self._rng),
    }

  def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes the arrays of `save` back: of a larger ring, the newest items.

    Raises:
      ValueError: they are of other items.
    """
    rows, count = arrays['rows'], int(arrays['count'])
    if rows.shape[1:] != self._rows.shape[1:]:
      raise ValueError(
        f'The saved replay has items {rows.shape[1:]}; this one has '
        f'{self._rows.shape[1:]}. Resume with the same config.'
      )
    keys = np.arange(count - len(rows), count)[-len(self._rows) :]
    source = keys % max(len(rows), 1)
    # A ring that is not full has its oldest item in front.
    self._count = count if len(keys) == len(self._rows) else len(keys)
    places = np.arange(self._count - len(keys), self._count) % len(self._rows)
    for own, name in (
      (self._rows, 'rows'),
      (self._powers, 'powers'),
      (self._sampled, 'sampled'),
    ):
      own[places] = arrays[name][source]
    unpack_random(self._rng, arrays['random'])

  def _power(self, priorities: np.ndarray) -> np.ndarray:
    return priorities ** (self._exponent or 0.0)


def pack_random(rng: np.random.Generator) -> np.ndarray:
  """The state of a generator as an array that can be saved."""
  state = json.dumps(rng.bit_generator.state)
  return np.frombuffer(state.encode(), np.uint8)


def unpack_random(rng: np.random.Generator, packed: np.ndarray) -> None:
  """Puts a generator where `pack_random` found it."""
  rng.bit_generator.state = json.loads(packed.tobytes())
