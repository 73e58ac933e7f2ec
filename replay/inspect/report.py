"""A report of the inspector: two readings of the tables, and some items."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import time
from typing import Any

import numpy as np

from replay.inspect import items as inspect_items
from replay.inspect import read as reading
from replay.inspect import target as inspect_target
from replay.inspect import words

# Items to look at if the user did not say how many.
UNASKED_LIVE = 32
UNASKED_OFFLINE = 1000

Key = tuple[str, str]  # label of the shard, name of the table


@dataclasses.dataclass(frozen=True)
class Wish:
  """Which items to look at.

  Attributes:
    count: items of each table and shard; None: a few, if that does no harm.
    data: whether the contents of items are needed.
    whole: whether the items must represent their whole table.
  """

  count: int | None = None
  data: bool = True
  whole: bool = False


@dataclasses.dataclass(frozen=True)
class Report:
  """What there is to show.

  Attributes:
    shards: the newest reading.
    rates: by shard and table, if there were two readings.
    looks: by shard and table; a string says why there was none.
    note: what else the user must know to interpret it.
  """

  title: str
  shards: Sequence[reading.Shard]
  rates: Mapping[Key, words.Rates]
  looks: Mapping[Key, inspect_items.Look | str]
  note: str = ''


def collect(
  args: argparse.Namespace,
  target: inspect_target.Target,
  wish: Wish,
  interval_s: float,
  before: Sequence[reading.Shard] | None = None,
) -> Report:
  """Reads the tables twice, and looks at items.

  Args:
    args: of the command: `target`, `table`, `timeout` and `learner_steps`.
    interval_s: seconds between the readings, over which rates are measured; 0
      for no second reading.
    before: the first reading, if it was made already.

  Raises:
    read.Failed: nothing could be read, there is no such table, or a requested
      look returned nothing.
  """
  again = before is not None
  if before is None:
    before = reading.choose(reading.read(target, args.timeout), args.table)
  shards: Sequence[reading.Shard] = before
  # A checkpoint has no rates. With `before`, a server may have come back since.
  if interval_s > 0 and (again or not all(shard.offline for shard in before)):
    time.sleep(interval_s)
    shards = reading.choose(reading.read(target, args.timeout), args.table)
  if args.learner_steps is not None:
    shards = [
      dataclasses.replace(shard, learner_steps=args.learner_steps)
      for shard in shards
    ]
  earlier = {shard.label: shard for shard in before}
  rates = {
    (shard.label, name): found
    for shard in shards
    if not shard.offline and shard.label in earlier
    for name in shard.tables
    if (found := words.rates(earlier[shard.label], shard, name)) is not None
  }
  looks = {
    (shard.label, name): _look(shard, one, wish, args.timeout)
    for shard in shards
    for name, one in shard.tables.items()
  }
  reasons = [look for look in looks.values() if isinstance(look, str)]
  if wish.count and looks and len(reasons) == len(looks):
    errors = [shard.error for shard in shards if shard.error]
    raise reading.Failed(' '.join(dict.fromkeys([*reasons, *errors])))
  note = ''
  if target.addresses and all(shard.offline for shard in shards):
    note = 'No server of this run answers. This is what it saved last.'
  return Report(args.target, shards, rates, looks, note)


def _look(
  shard: reading.Shard, table: reading.Table, wish: Wish, timeout_s: float
) -> inspect_items.Look | str:
  if wish.count == 0:
    return 'Not looked at (--look 0).'
  try:
    if shard.offline:
      look = inspect_items.look_saved(
        shard, table, wish.count or UNASKED_OFFLINE, wish.data
      )
      count = len(look.items)
      if wish.count and not wish.whole and count < wish.count:
        fewer = f'{count:,} of {wish.count:,} items: it holds no more.'
        look = dataclasses.replace(look, fewer=fewer)
      return look
    if wish.whole:
      inspect_items.refuse_whole(table)
    if wish.count:
      return inspect_items.look_live(shard, table, wish.count, timeout_s)
    count = inspect_items.unasked(table, UNASKED_LIVE)
    # A look that the user did not ask for must not wait long.
    return inspect_items.look_live(shard, table, count, min(1.0, timeout_s))
  except inspect_items.NotLooked as e:
    return str(e)


def left_out(report: Report) -> list[str]:
  """A sentence for each thing that the items looked at do not show."""
  found = [report.note] if report.note else []
  found += [
    f'Without {shard.label}: {shard.error}'
    for shard in report.shards
    if shard.error
  ]
  for (label, name), look in report.looks.items():
    if isinstance(look, str):
      found.append(f'Without {label}, table {name}: {look}')
    elif look.fewer:
      found.append(f'{label}, table {name}: {look.fewer}')
  return found


def source(report: Report, what: str) -> str:
  """Where the `values` of a report come from."""
  count = whole = 0
  sampled = False
  for shard in report.shards:
    for name, table in shard.tables.items():
      look = report.looks[shard.label, name]
      if not isinstance(look, str) and look.values(what)[0].size:
        count, whole = count + len(look.items), whole + table.size
        sampled = sampled or look.sampled
  if not sampled:
    return f'{count:,} of {whole:,} items in the checkpoint'
  return (
    f'{count:,} samples of {whole:,} items in the live table, weighted by 1 / '
    'probability to stand for these'
  )


def values(report: Report, what: str) -> dict[str, tuple[Any, Any]]:
  """Values and weights by table name, over all shards.

  Raises:
    read.Failed: no table has items with such values.
  """
  found: dict[str, list] = {}
  for (label, name), look in report.looks.items():
    if isinstance(look, str):
      continue
    shard = next(shard for shard in report.shards if shard.label == label)
    own, weights = look.values(what)
    if own.size:
      # Shards are weighted by their size.
      weights = weights / weights.sum() * shard.tables[name].size
      found.setdefault(name, []).append((own, weights))
  if not found:
    raise reading.Failed(
      f'No table has {what} to show: '
      + {
        'priorities': 'no item could be looked at.',
        'ages': 'their items do not say when they were written.',
        'returns': 'their items have no column of rewards '
        f'({", ".join(inspect_items.RETURNS)}).',
      }[what]
    )
  return {
    name: (
      np.concatenate([own for own, _ in pairs]),
      np.concatenate([weights for _, weights in pairs]),
    )
    for name, pairs in found.items()
  }


def totals(report: Report) -> dict[str, dict[str, float]]:
  """Sums over all shards, by table name."""
  found: dict[str, dict[str, float]] = {}
  for shard in report.shards:
    for name, table in shard.tables.items():
      total = found.setdefault(
        name, {'items': 0, 'max_items': 0, 'inserts_s': 0.0, 'samples_s': 0.0}
      )
      total['items'] += table.size
      total['max_items'] += table.max_size
      if rates := report.rates.get((shard.label, name)):
        total['inserts_s'] += rates.inserts
        total['samples_s'] += rates.samples
  return found


def as_dict(report: Report, with_items: bool = False) -> dict[str, Any]:
  """The report for scripts: numbers, and the sentences that go with them."""
  return {
    'target': report.title,
    'note': report.note,
    'shards': [
      {
        'shard': shard.label,
        'source': shard.source,
        'kind': 'checkpoint' if shard.offline else 'server',
        'error': shard.error,
        'learner_steps': shard.learner_steps,
        'saved_at': shard.saved.time if shard.saved else None,
        'meta': shard.saved.meta if shard.saved else None,
        'tables': [
          _table_dict(report, shard, table, with_items)
          for table in shard.tables.values()
        ],
      }
      for shard in report.shards
    ],
    'totals': totals(report),
  }


def _table_dict(
  report: Report, shard: reading.Shard, table: reading.Table, with_items: bool
) -> dict[str, Any]:
  rates = report.rates.get((shard.label, table.name))
  look = report.looks.get((shard.label, table.name))
  found: dict[str, Any] = {
    'table': table.name,
    'items': table.size,
    'max_items': table.max_size,
    'max_times_sampled': table.max_times_sampled,
    'sampler': words.selector(table.sampler),
    'remover': words.selector(table.remover),
    'limiter': dataclasses.asdict(table.limiter),
    'limiter_rule': words.limiter_rule(table.limiter),
    'limiter_state': words.limiter_state(table),
    'inserts_s': rates.inserts if rates else None,
    'samples_s': rates.samples if rates else None,
    'worker_time': rates.parts if rates else None,
    'episodes': table.episodes,
    'unique_samples': table.unique_samples,
    'bytes_per_item': table.bytes_per_item,
    'columns': [
      {'name': name, 'dtype': spec.dtype.name, 'shape': _shape(spec)}
      for name, spec in reading.leaves(table.signature)
    ],
  }
  if isinstance(look, inspect_items.Look):
    found['looked_at'] = len(look.items)
    found['fewer'] = look.fewer or None
    for what in ('ages', 'lags', 'versions'):
      values, weights = look.values(what)
      if look.sampled:
        weights = np.ones(len(values))
      found[what] = _statistics(values, weights)
    if with_items:
      found['samples'] = [_item_dict(item) for item in look.items]
  else:
    found['not_looked'] = look
  return found


def _shape(spec: Any) -> list | None:
  return None if spec.shape.rank is None else spec.shape.as_list()


def _statistics(values: Any, weights: Any) -> dict[str, float] | None:
  if not len(values):
    return None
  return {
    'mean': float(np.average(values, weights=weights)),
    'min': float(values.min()),
    'max': float(values.max()),
  }


def _item_dict(item: inspect_items.Item) -> dict[str, Any]:
  return {
    'key': item.key,
    'priority': item.priority,
    'times_sampled': item.times_sampled,
    'age_s': item.age_s,
    'fields': {
      name: {
        'dtype': str(np.asarray(value).dtype),
        'shape': list(np.shape(value)),
        'values': np.asarray(value).tolist(),
      }
      for name, value in item.fields.items()
    },
  }
