"""Looks at items: their contents, ages and policy versions.

Reverb shows an item only by sampling it. On a live server, that counts as a
sample for the rate limiter and for the item, and removes the item from a queue.
A look is therefore small, has a time limit, and is refused where it would use
up items. A checkpoint is copied, and a temporary server restores the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
import threading
import time
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
import tree

from replay import checkpoints
from replay import packing
from replay.inspect import read as reading

# Names of columns that hold rewards, in any table.
RETURNS = ('r_t', 'reward', 'rewards')
# Part of the limiter's range by which a default look (no --look) may move it.
_UNASKED_PART = 0.01


class NotLooked(Exception):
  """No item was looked at; the message says why."""


@dataclasses.dataclass(frozen=True)
class Item:
  """One item.

  Attributes:
    priority: as stored, not raised to an exponent.
    times_sampled: on a live server, includes this look.
    fields: arrays by name: the fields of `packing.Transition`, or the columns.
    age_s: seconds since the insert, if known.
  """

  key: int
  priority: float
  times_sampled: int
  fields: Mapping[str, np.ndarray]
  age_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Look:
  """Items of one table.

  Attributes:
    weights: the share of the table that each item represents, [N], sum 1. They
      correct for prioritized samplers, which draw large priorities more often.
    sampled: whether the table's sampler drew them (live); their ages are then
      those of the samples that a learner gets.
    now: seconds since the epoch to which ages refer.
    learner_steps: for the policy lag, if known.
    fewer: a sentence on why there are fewer items than requested, or ''.
  """

  items: list[Item]
  weights: np.ndarray
  sampled: bool
  now: float
  learner_steps: int | None
  fewer: str = ''

  def values(self, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Values with their weights, float64 [M] each; empty if unknown.

    Args:
      what: 'priorities'; 'ages', seconds; 'returns', reward units; 'versions'
        or 'lags', learner steps. Each transition of an item has its own value.
    """
    if what == 'lags' and self._too_few_steps():
      return np.empty(0), np.empty(0)
    pairs = [
      (own.reshape(-1), weight)
      for item, weight in zip(self.items, self.weights, strict=True)
      if (own := self._of(item, what)) is not None and own.size
    ]
    if not pairs:
      return np.empty(0), np.empty(0)
    weights = [np.full(own.size, weight / own.size) for own, weight in pairs]
    return np.concatenate([own for own, _ in pairs]), np.concatenate(weights)

  def _too_few_steps(self) -> bool:
    """Whether most items are of versions that the learner has yet to reach."""
    versions, _ = self.values('versions')
    steps = self.learner_steps
    return steps is not None and bool(
      np.sum(versions > steps) * 2 > len(versions)
    )

  def _of(self, item: Item, what: str) -> np.ndarray | None:
    if what == 'priorities':
      return np.array([item.priority])
    if what == 'ages':
      if item.age_s is not None:
        return np.array([item.age_s])
      written = _field(item, ('written_at',))
      return None if written is None else packing.age_s(written, self.now)
    if what == 'returns':
      rewards = _field(item, RETURNS)
      # A sequence or a block [T, ...] has one reward per step.
      if rewards is not None and 'weight' not in item.fields and rewards.ndim:
        rewards = rewards.sum(axis=0)
      return rewards
    version = _field(item, ('version', 'versions'))
    if what == 'lags' and version is not None:
      if self.learner_steps is None:
        return None
      # The counter of a run may lag a moment behind its learner.
      return np.maximum(self.learner_steps - version, 0.0)
    return version


def look_live(
  shard: reading.Shard, table: reading.Table, count: int, timeout_s: float
) -> Look:
  """Samples up to `count` items; only one if the sampler would repeat it.

  Raises:
    NotLooked: a look would use up items, another version packed them, or the
      limiter or the server did not respond within timeout_s.
  """
  refuse(table)
  specs = table.signature
  if specs is None:
    raise NotLooked(
      f'Table {table.name!r} has no signature, which says what its items are.'
    )
  _layout(specs)
  wanted, count = count, 1 if in_order(table) else count
  found: list[Any] = []
  errors: list[str] = []

  def sample() -> None:
    dataset = reverb.TrajectoryDataset(
      shard.source,
      table.name,
      dtypes=tree.map_structure(lambda spec: spec.dtype, specs),
      shapes=tree.map_structure(lambda spec: spec.shape, specs),
      max_in_flight_samples_per_worker=count,
      num_workers_per_iterator=1,
      max_samples=count,
      rate_limiter_timeout_ms=int(1000 * timeout_s),
    )
    try:
      for one in dataset.as_numpy_iterator():
        found.append(one)
    except tf.errors.OpError as e:
      errors.append(str(e).splitlines()[0])

  # A daemon thread, because a dataset may wait forever for a lost server.
  thread = threading.Thread(target=sample, daemon=True)
  thread.start()
  thread.join(timeout_s + 5.0)
  samples = list(found)
  ending = f'within {timeout_s:g} s' + (f': {errors[0]}' if errors else '.')
  if not samples:
    raise NotLooked(f'Table {table.name!r} gave no sample {ending}')
  fewer = ''
  if len(samples) < count:
    fewer = f'{len(samples):,} of {count:,} items: the table gave no more '
    fewer += ending
  elif count < wanted:
    fewer = f'1 of {wanted:,} items: its sampler gives this one every time.'
  weights = 1 / np.array([float(one.info.probability) for one in samples])
  items = [
    Item(
      int(one.info.key),
      float(one.info.priority),
      int(one.info.times_sampled),
      decode(specs, tree.flatten(one.data)),
    )
    for one in samples
  ]
  weights /= weights.sum()
  return Look(items, weights, True, time.time(), shard.learner_steps, fewer)


def look_saved(
  shard: reading.Shard, table: reading.Table, count: int, data: bool = True
) -> Look:
  """Draws up to `count` items of a checkpoint uniformly, without replacement.

  With data=False, items have no fields, only priorities and ages.

  Raises:
    NotLooked: the table is empty, or its items have another format.
  """
  source = pathlib.Path(shard.source)
  if not table.size:
    raise NotLooked(f'Table {table.name!r} is empty.')
  order = np.random.default_rng(0).permutation(table.size)
  chosen = set(order[:count].tolist())
  own = (i for i in checkpoints.read_items(source) if i.table == table.name)
  picked = [item for index, item in enumerate(own) if index in chosen]
  assert shard.saved is not None
  saved = shard.saved.time
  decoded = {}
  if data:
    decoded = {
      key: decode(table.signature, columns)
      for key, columns in checkpoints.read_data(source, table.name, picked)
    }
  items = [
    Item(
      item.key,
      item.priority,
      item.times_sampled,
      decoded.get(item.key, {}),
      max(0.0, saved - item.inserted_at.ToNanoseconds() / 1e9),
    )
    for item in picked
  ]
  weights = np.full(len(items), 1 / len(items))
  return Look(items, weights, False, saved, shard.learner_steps)


def unasked(table: reading.Table, count: int) -> int:
  """How many items to look at if the user did not say.

  Raises:
    NotLooked: none, for the reason in the message.
  """
  refuse(table)
  limiter = table.limiter
  if not limiter.unlimited:
    room = _UNASKED_PART * (limiter.max_diff - limiter.min_diff)
    count = min(count, int(room))
    if limiter.samples_wait(table.size):
      count = 0
  if count < 1:
    raise NotLooked(
      'Its limiter is too tight for a look that was not asked for: --look N '
      'does it.'
    )
  return count


def in_order(table: reading.Table) -> bool:
  """Whether the sampler returns the same item until the table changes."""
  options = table.sampler
  return options.HasField('heap') or options.fifo or options.lifo


def refuse_whole(table: reading.Table) -> None:
  """Raises NotLooked if samples would not represent the whole table."""
  if in_order(table):
    raise NotLooked(
      f'The sampler of table {table.name!r} does not draw at random: it gives '
      'one item again and again, which says nothing of the others. Look at a '
      'checkpoint.'
    )


def refuse(table: reading.Table) -> None:
  """Raises NotLooked if a look would wait, or would use up items."""
  if table.max_times_sampled:
    raise NotLooked(
      f'Items leave table {table.name!r} after {table.max_times_sampled} '
      'sample(s): a look would take them from its reader. Look at a checkpoint.'
    )
  if table.size < table.limiter.min_size_to_sample:
    need = table.limiter.min_size_to_sample
    raise NotLooked(
      f'Samples wait until {need:,} items are there; there are {table.size:,}.'
    )


def decode(signature: Any, columns: list[np.ndarray]) -> dict[str, np.ndarray]:
  """Named fields of an item from its columns.

  Raises:
    NotLooked: another version of this project packed them.
  """
  named = reading.leaves(signature)
  if not named:
    return {f'column {n}': column for n, column in enumerate(columns)}
  layout = _layout(signature)
  if layout is not None:
    return layout.unpack(np.asarray(columns[0]))._asdict()
  return {
    name: np.asarray(column)
    for (name, _), column in zip(named, columns, strict=True)
  }


def _layout(signature: Any) -> packing.TransitionLayout | None:
  """Layout of packed transitions; NotLooked if of another version."""
  named = reading.leaves(signature)
  try:
    return packing.from_signature(named[0][1]) if len(named) == 1 else None
  except packing.WrongFormat as e:
    raise NotLooked(str(e)) from e


def _field(item: Item, names: tuple[str, ...]) -> np.ndarray | None:
  for name, value in item.fields.items():
    if name.split('/')[-1] in names:
      value = np.asarray(value, float)
      there = item.fields.get('weight')
      # Leaves out the places of a population's array that hold no transition.
      return value if there is None else value[np.asarray(there) > 0]
  return None
