"""Reads replay tables and some of their items, live or from a checkpoint.

The state of a live table is its `server_info`; reading it changes nothing. An
item of a live table is shown by sampling it, as Reverb has no other way: that
counts for the rate limiter and for the item, and takes the item out of a queue.
So items are read only where the user asked for them, within a time limit, and
never from tables whose items go after some samples. A checkpoint is read from
its files; a temporary server decodes the data of its items.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import math
import pathlib
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf
import tree

from murmuration.replay import checkpoints
from murmuration.replay import packing
from murmuration.replay import table_checks
from murmuration.replay.inspect import target as inspect_target

# Items of each table and shard for a histogram.
_OF_LIVE, _OF_SAVED = 256, 1000


class Failed(Exception):
  """There is nothing to show; the message says why."""


@dataclasses.dataclass(frozen=True)
class Rates:
  """Activity of a table between two readings.

  Attributes:
    inserts, samples: per second.
    parts: part of the time that the table's thread spent in each state.
  """

  inserts: float
  samples: float
  parts: dict[str, float]


class Item(NamedTuple):
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


@dataclasses.dataclass
class Table:
  """A table as its server or its checkpoint describes it.

  Attributes:
    size, max_size: items.
    max_times_sampled: samples after which an item is removed; 0: never.
    sampler, remover: Reverb's `KeyDistributionOptions`.
    signature: (nested) tf.TensorSpec, or None.
    worker_ms: time the table's thread has spent, by state; empty if saved.
    rates: None if they are not known.
    items: those that were looked at.
    weights: the share of the table that each of them represents, [N], sum 1.
      They correct for samplers that draw large priorities more often.
    missing: why there are no items although they were asked for, or ''.
  """

  name: str
  size: int
  max_size: int
  max_times_sampled: int
  sampler: Any
  remover: Any
  limiter: table_checks.Limiter
  signature: Any
  worker_ms: Mapping[str, int] = dataclasses.field(default_factory=dict)
  rates: Rates | None = None
  items: Sequence[Item] = ()
  weights: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
  missing: str = ''


@dataclasses.dataclass(frozen=True)
class Shard:
  """One server or one checkpoint.

  Attributes:
    label: 'replay' or 'shard 2'.
    source: its address, or the directory of its checkpoint.
    time: when it was read, on the monotonic clock, in seconds.
    tables: empty if there is an error.
    saved: what is known of the checkpoint; None if it is a server.
    error: why it could not be read, or ''.
  """

  label: str
  source: str
  time: float
  tables: Sequence[Table] = ()
  saved: checkpoints.Saved | None = None
  error: str = ''


@dataclasses.dataclass(frozen=True)
class Report:
  """The newest reading, and what else the user must know."""

  title: str
  shards: Sequence[Shard]
  note: str = ''


# Tables.


def collect(
  args: argparse.Namespace,
  target: inspect_target.Target,
  interval_s: float,
  before: Sequence[Shard] | None = None,
) -> Report:
  """Reads the tables, live servers twice.

  Args:
    args: of the command: `target` and `timeout`.
    interval_s: seconds between the readings, over which rates are measured; 0
      for no second reading.
    before: the first reading, if it was made already.

  Raises:
    Failed: nothing could be read.
  """
  first = read(target, args.timeout) if before is None else before
  shards = first
  # A checkpoint has no rates. With `before`, a server may have come back since.
  if interval_s > 0 and (before or not all(shard.saved for shard in first)):
    time.sleep(interval_s)
    shards = read(target, args.timeout)
  earlier = {shard.label: shard for shard in first}
  for shard in shards:
    if shard.label in earlier:
      _add_rates(earlier[shard.label], shard)
  note = ''
  if target.addresses and all(shard.saved for shard in shards):
    note = 'No server of this run answers. This is what it saved last.'
  return Report(args.target, shards, note)


def read(target: inspect_target.Target, timeout_s: float) -> list[Shard]:
  """Reads live servers, or the checkpoints if none answers.

  Raises:
    Failed: neither could be read.
  """
  shards = [
    read_server(address, timeout_s, label)
    for label, address in target.addresses.items()
  ]
  if all(shard.error for shard in shards):
    saved = [
      read_checkpoint(path, label) for label, path in target.saved().items()
    ]
    if not saved and target.ended():
      raise Failed(
        'The run has ended without a checkpoint of its replay. '
        'run.replay_checkpoint_s says how often a run saves it.'
      )
    if all(shard.error for shard in saved):
      raise Failed(' '.join(shard.error for shard in [*shards, *saved]))
    return saved
  return shards


def read_server(address: str, timeout_s: float, label: str = 'replay') -> Shard:
  """Reads a live server; sets `error` if it does not answer."""
  tables, error = [], ''
  try:
    info = reverb.Client(address).server_info(timeout=math.ceil(timeout_s))
    tables = [*map(_live, info.values())]
  except (reverb.errors.DeadlineExceededError, RuntimeError) as e:
    error = (
      f'No Reverb server answered at {address} within {timeout_s:g} s '
      f'({str(e).splitlines()[0]}). Check the address, or raise --timeout.'
    )
  return Shard(label, address, time.monotonic(), tables, error=error)


def _live(info: Any) -> Table:
  times = info.table_worker_time
  return Table(
    name=info.name,
    size=info.current_size,
    max_size=info.max_size,
    max_times_sampled=info.max_times_sampled,
    sampler=info.sampler_options,
    remover=info.remover_options,
    limiter=table_checks.live_limiter(info),
    signature=info.signature,
    worker_ms={
      field.name.removesuffix('_ms'): getattr(times, field.name)
      for field in times.DESCRIPTOR.fields
    },
  )


def read_checkpoint(path: pathlib.Path, label: str = 'replay') -> Shard:
  """Reads a generation, or the newest whole one of a checkpoint directory."""
  error = f'{path} holds no checkpoint.'
  one = (path / checkpoints.TABLES).exists()
  for candidate in [path] if one else checkpoints.generations(path):
    try:
      saved = checkpoints.read(candidate)
      tables = _saved_tables(candidate)
      return Shard(label, str(candidate), time.monotonic(), tables, saved)
    except OSError as e:
      error = f'The checkpoint is broken: {e}'
  return Shard(label, str(path), time.monotonic(), error=error)


def _saved_tables(path: pathlib.Path) -> list[Table]:
  saved = checkpoints.read_tables(path)
  sizes = dict.fromkeys(saved, 0)
  for item in checkpoints.read_items(path):
    sizes[item.table] += 1
  return [
    Table(
      name=name,
      size=sizes[name],
      max_size=table.max_size,
      max_times_sampled=table.max_times_sampled,
      sampler=table.sampler,
      remover=table.remover,
      limiter=table_checks.limiter_of(
        table.rate_limiter,
        table.rate_limiter.insert_count,
        table.rate_limiter.sample_count,
      ),
      signature=checkpoints.decode_signature(table),
    )
    for name, table in saved.items()
  ]


def _add_rates(before: Shard, after: Shard) -> None:
  """Sets the rates of the tables, if both readings are of the same server."""
  span = after.time - before.time
  old = {table.name: table for table in before.tables}
  for table in after.tables:
    if after.saved or span <= 0 or table.name not in old:
      continue
    then = old[table.name]
    inserts = table.limiter.inserts - then.limiter.inserts
    samples = table.limiter.samples - then.limiter.samples
    if inserts < 0 or samples < 0:
      continue  # another server now, or the table was reset
    parts = {
      state: min(1.0, (ms - then.worker_ms.get(state, 0)) / (1000 * span))
      for state, ms in table.worker_ms.items()
    }
    table.rates = Rates(inserts / span, samples / span, parts)


def totals(report: Report) -> dict[str, dict[str, float]]:
  """Sums over all shards, by table name."""
  found: dict[str, dict[str, float]] = {}
  for table in (table for shard in report.shards for table in shard.tables):
    total = found.setdefault(
      table.name,
      {'items': 0, 'max_items': 0, 'inserts_s': 0.0, 'samples_s': 0.0},
    )
    total['items'] += table.size
    total['max_items'] += table.max_size
    if table.rates:
      total['inserts_s'] += table.rates.inserts
      total['samples_s'] += table.rates.samples
  return found


# Items.


def look(report: Report, timeout_s: float, count: int | None = None) -> None:
  """Adds `count` items to each table; None: those for a histogram.

  Raises:
    Failed: there is no item.
  """
  missing = [shard.error for shard in report.shards if shard.error]
  for shard in report.shards:
    for table in shard.tables:
      if shard.saved:
        table.items = _saved_items(shard, table, count)
        table.weights = np.full(len(table.items), 1 / max(1, len(table.items)))
      else:
        table.missing = _closed(table, count)
        if not table.missing:
          _look_live(shard.source, table, count, timeout_s)
      if not table.items:
        table.missing = table.missing or f'Table {table.name!r} gave no item.'
        missing.append(table.missing)
  if not any(table.items for shard in report.shards for table in shard.tables):
    raise Failed(' '.join(dict.fromkeys(missing)))


def _repeats(options: Any) -> bool:
  """Whether a sampler gives the same item again and again."""
  return options.HasField('heap') or options.fifo or options.lifo


def _closed(table: Table, count: int | None) -> str:
  """Why a live table is not looked at, or ''."""
  need = table.limiter.min_size_to_sample
  if table.max_times_sampled:
    return (
      f'Items leave table {table.name!r} after {table.max_times_sampled} '
      'sample(s): a look would take them from its reader. Look at a checkpoint.'
    )
  if table.size < need:
    return f'Samples wait until {need:,} items are there, of {table.size:,}.'
  if table.signature is None:
    return f'Table {table.name!r} has no signature to decode its items by.'
  if count is None and _repeats(table.sampler):
    return (
      f'The sampler of table {table.name!r} gives one item again and again, '
      'which says nothing of the others. Look at a checkpoint.'
    )
  return ''


def _look_live(
  address: str, table: Table, count: int | None, timeout_s: float
) -> None:
  """Samples items of a live table, for at most about `timeout_s`."""
  most = 1 if _repeats(table.sampler) else count or _OF_LIVE
  samples: list[Any] = []

  def sample() -> None:
    dataset = reverb.TrajectoryDataset(
      address,
      table.name,
      dtypes=tree.map_structure(lambda spec: spec.dtype, table.signature),
      shapes=tree.map_structure(lambda spec: spec.shape, table.signature),
      max_in_flight_samples_per_worker=most,
      num_workers_per_iterator=1,
      max_samples=most,
      rate_limiter_timeout_ms=int(1000 * timeout_s),
    )
    with contextlib.suppress(tf.errors.OpError):  # the time is over
      for one in dataset.as_numpy_iterator():
        samples.append(one)

  # A daemon thread, because a dataset may wait forever for a lost server.
  thread = threading.Thread(target=sample, daemon=True)
  thread.start()
  thread.join(timeout_s + 5.0)
  table.items = [
    Item(
      int(one.info.key),
      float(one.info.priority),
      int(one.info.times_sampled),
      decode(table.signature, tree.flatten(one.data)),
    )
    for one in samples[:most]
  ]
  inverse = 1 / np.array([one.info.probability for one in samples[:most]])
  table.weights = inverse / inverse.sum()


def _saved_items(shard: Shard, table: Table, count: int | None) -> list[Item]:
  """Draws items of a checkpoint uniformly, each once.

  With None those for a histogram, without their fields.
  """
  source = pathlib.Path(shard.source)
  order = np.random.default_rng(0).permutation(table.size)
  chosen = set(order[: count or _OF_SAVED].tolist())
  own = (i for i in checkpoints.read_items(source) if i.table == table.name)
  picked = {i.key: i for index, i in enumerate(own) if index in chosen}
  fields = {}
  if count and picked:
    fields = {
      key: decode(table.signature, columns)
      for key, columns in checkpoints.read_data(source, table.name, picked)
    }
  return [
    Item(key, i.priority, i.times_sampled, fields.get(key, {}))
    for key, i in picked.items()
  ]


def priorities(report: Report) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Priorities and their weights by table name, over all shards."""
  values: dict[str, list[float]] = {}
  weights: dict[str, list[float]] = {}
  for table in (table for shard in report.shards for table in shard.tables):
    if table.items:
      own = [item.priority for item in table.items]
      values.setdefault(table.name, []).extend(own)
      # Shards are weighted by their size.
      shares = table.weights * table.size
      weights.setdefault(table.name, []).extend(shares)
  return {
    name: (np.array(own), np.array(weights[name]))
    for name, own in values.items()
  }


def leaves(signature: Any) -> list[tuple[str, Any]]:
  """Names and specs of the columns of an item, in the order of its data."""
  if signature is None:
    return []
  return [
    ('/'.join(map(str, path)) or spec.name or 'item', spec)
    for path, spec in tree.flatten_with_path(signature)
  ]


def decode(
  signature: Any, columns: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
  """Named fields of an item from its columns."""
  named = leaves(signature)
  layout = packing.from_signature(named[0][1]) if len(named) == 1 else None
  if layout is not None:
    return layout.unpack(np.asarray(columns[0]))._asdict()
  names = [name for name, _ in named] or range(len(columns))
  return {str(n): np.asarray(c) for n, c in zip(names, columns, strict=True)}
