"""Looks at items: their priorities and their contents.

Reverb shows an item only by sampling it. On a live server, that counts as a
sample for the rate limiter and for the item, and removes the item from a queue.
A look is therefore made only where it was asked for, has a time limit, and is
refused where it would use up items. A checkpoint is read from its files, and a
temporary server decodes the data.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
import threading
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
import tree

from murmuration.replay import checkpoints
from murmuration.replay import packing
from murmuration.replay.inspect import read as reading


class NotLooked(Exception):
  """No item was looked at; the message says why."""


@dataclasses.dataclass(frozen=True)
class Item:
  """One item.

  Attributes:
    priority: as stored, not raised to an exponent.
    times_sampled: on a live server, includes this look.
    fields: arrays by name: the fields of `packing.Transition`, or the columns.
  """

  key: int
  priority: float
  times_sampled: int
  fields: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Look:
  """Items of one table.

  Attributes:
    weights: the share of the table that each item represents, [N], sum 1. They
      correct for prioritized samplers, which draw large priorities more often.
    fewer: a sentence on why there are fewer items than requested, or ''.
  """

  items: list[Item]
  weights: np.ndarray
  fewer: str = ''

  @property
  def priorities(self) -> np.ndarray:
    return np.array([item.priority for item in self.items])


def look_live(
  shard: reading.Shard,
  table: reading.Table,
  count: int,
  timeout_s: float,
  whole: bool = False,
) -> Look:
  """Samples up to `count` items; only one if the sampler would repeat it.

  With `whole`, they must represent the whole table.

  Raises:
    NotLooked: a look would use up items, another version packed them, or the
      limiter or the server did not respond within timeout_s.
  """
  name, specs = table.name, table.signature
  if table.max_times_sampled:
    raise NotLooked(
      f'Items leave table {name!r} after {table.max_times_sampled} sample(s): '
      'a look would take them from its reader. Look at a checkpoint.'
    )
  if table.size < table.limiter.min_size_to_sample:
    need = table.limiter.min_size_to_sample
    raise NotLooked(
      f'Samples wait until {need:,} items are there; there are {table.size:,}.'
    )
  if specs is None:
    raise NotLooked(
      f'Table {name!r} has no signature, which says what its items are.'
    )
  options = table.sampler
  repeats = options.HasField('heap') or options.fifo or options.lifo
  if repeats and whole:
    raise NotLooked(
      f'The sampler of table {name!r} does not draw at random: it gives one '
      'item again and again, which says nothing of the others. Look at a '
      'checkpoint.'
    )
  _layout(specs)
  wanted, count = count, 1 if repeats else count
  found: list[Any] = []
  errors: list[str] = []

  def sample() -> None:
    dataset = reverb.TrajectoryDataset(
      shard.source,
      name,
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
    raise NotLooked(f'Table {name!r} gave no sample {ending}')
  fewer = ''
  if len(samples) < wanted:
    why = (
      'its sampler gives this one again and again.'
      if repeats
      else f'the table gave no more {ending}'
    )
    fewer = f'{len(samples):,} of {wanted:,} items: {why}'
  weights = np.array([1 / one.info.probability for one in samples])
  return Look(
    [
      Item(
        int(one.info.key),
        float(one.info.priority),
        int(one.info.times_sampled),
        decode(specs, tree.flatten(one.data)),
      )
      for one in samples
    ],
    weights / weights.sum(),
    fewer,
  )


def look_saved(
  shard: reading.Shard, table: reading.Table, count: int, data: bool = True
) -> Look:
  """Draws up to `count` items of a checkpoint uniformly, without replacement.

  With data=False, items have no fields.

  Raises:
    NotLooked: the table is empty, or another version packed its items.
  """
  source = pathlib.Path(shard.source)
  if not table.size:
    raise NotLooked(f'Table {table.name!r} is empty.')
  order = np.random.default_rng(0).permutation(table.size)
  chosen = set(order[:count].tolist())
  own = (i for i in checkpoints.read_items(source) if i.table == table.name)
  picked = [item for index, item in enumerate(own) if index in chosen]
  decoded = {}
  if data:
    decoded = {
      key: decode(table.signature, columns)
      for key, columns in checkpoints.read_data(source, table.name, picked)
    }
  items = [
    Item(i.key, i.priority, i.times_sampled, decoded.get(i.key, {}))
    for i in picked
  ]
  fewer = ''
  if data and len(items) < count:
    fewer = f'{len(items):,} of {count:,} items: it holds no more.'
  return Look(items, np.full(len(items), 1 / len(items)), fewer)


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
