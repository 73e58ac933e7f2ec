"""A report of the inspector: two readings of the tables, and some items."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import time
from typing import Any

import numpy as np

from murmuration.replay.inspect import items as inspect_items
from murmuration.replay.inspect import read as reading
from murmuration.replay.inspect import target as inspect_target
from murmuration.replay.inspect import words

# Items of each table and shard for a histogram.
_OF_LIVE, _OF_SAVED = 256, 1000

Key = tuple[str, str]  # label of the shard, name of the table
Looks = Mapping[
  Key, inspect_items.Look | str
]  # a string says why there is none


@dataclasses.dataclass(frozen=True)
class Report:
  """What there is to show.

  Attributes:
    shards: the newest reading.
    rates: by shard and table, if there were two readings.
    note: what else the user must know to interpret it.
  """

  title: str
  shards: Sequence[reading.Shard]
  rates: Mapping[Key, words.Rates]
  note: str = ''


def collect(
  args: argparse.Namespace,
  target: inspect_target.Target,
  interval_s: float,
  before: Sequence[reading.Shard] | None = None,
) -> Report:
  """Reads the tables twice.

  Args:
    args: of the command: `target`, `table` and `timeout`.
    interval_s: seconds between the readings, over which rates are measured; 0
      for no second reading.
    before: the first reading, if it was made already.

  Raises:
    read.Failed: nothing could be read, or there is no such table.
  """
  again = before is not None
  if before is None:
    before = reading.choose(reading.read(target, args.timeout), args.table)
  shards: Sequence[reading.Shard] = before
  # A checkpoint has no rates. With `before`, a server may have come back since.
  if interval_s > 0 and (again or not all(shard.offline for shard in before)):
    time.sleep(interval_s)
    shards = reading.choose(reading.read(target, args.timeout), args.table)
  earlier = {shard.label: shard for shard in before}
  rates = {
    (shard.label, name): found
    for shard in shards
    if not shard.offline and shard.label in earlier
    for name in shard.tables
    if (found := words.rates(earlier[shard.label], shard, name)) is not None
  }
  note = ''
  if target.addresses and all(shard.offline for shard in shards):
    note = 'No server of this run answers. This is what it saved last.'
  return Report(args.target, shards, rates, note)


def look(report: Report, timeout_s: float, count: int | None = None) -> Looks:
  """Looks at `count` items of each table, or at those for a histogram.

  Raises:
    read.Failed: there is no item.
  """
  looks: dict[Key, inspect_items.Look | str] = {}
  whole = count is None
  for shard in report.shards:
    for name, table in shard.tables.items():
      try:
        if shard.offline:
          looks[shard.label, name] = inspect_items.look_saved(
            shard, table, count or _OF_SAVED, data=not whole
          )
        else:
          looks[shard.label, name] = inspect_items.look_live(
            shard, table, count or _OF_LIVE, timeout_s, whole
          )
      except inspect_items.NotLooked as e:
        looks[shard.label, name] = str(e)
  reasons = [look for look in looks.values() if isinstance(look, str)]
  if len(reasons) == len(looks):
    errors = [shard.error for shard in report.shards if shard.error]
    raise reading.Failed(' '.join(dict.fromkeys([*reasons, *errors])))
  return looks


def left_out(report: Report, looks: Looks) -> list[str]:
  """A sentence for each thing that the items looked at do not show."""
  found = [report.note] if report.note else []
  found += [
    f'Without {shard.label}: {shard.error}'
    for shard in report.shards
    if shard.error
  ]
  for (label, name), own in looks.items():
    if isinstance(own, str):
      found.append(f'Without {label}, table {name}: {own}')
    elif own.fewer:
      found.append(f'{label}, table {name}: {own.fewer}')
  return found


def priorities(
  report: Report, looks: Looks
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Priorities and their weights by table name, over all shards."""
  sizes = {
    (shard.label, name): table.size
    for shard in report.shards
    for name, table in shard.tables.items()
  }
  found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
  for key, own in looks.items():
    if not isinstance(own, str):
      # Shards are weighted by their size.
      pair = own.priorities, own.weights * sizes[key]
      found.setdefault(key[1], []).append(pair)
  return {
    name: (np.concatenate(values), np.concatenate(weights))
    for name, pairs in found.items()
    for values, weights in [zip(*pairs)]
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


def as_dict(report: Report, looks: Looks | None = None) -> dict[str, Any]:
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
        'saved_at': shard.saved.time if shard.saved else None,
        'meta': shard.saved.meta if shard.saved else None,
        'tables': [
          _table_dict(report, shard, table)
          | _look_dict((looks or {}).get((shard.label, table.name)))
          for table in shard.tables.values()
        ],
      }
      for shard in report.shards
    ],
    'totals': totals(report),
  }


def _table_dict(
  report: Report, shard: reading.Shard, table: reading.Table
) -> dict[str, Any]:
  rates = report.rates.get((shard.label, table.name))
  return {
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
      {
        'name': name,
        'dtype': spec.dtype.name,
        'shape': None if spec.shape.rank is None else spec.shape.as_list(),
      }
      for name, spec in reading.leaves(table.signature)
    ],
  }


def _look_dict(look: inspect_items.Look | str | None) -> dict[str, Any]:
  if look is None:
    return {}
  if isinstance(look, str):
    return {'not_looked': look}
  samples = [
    {
      'key': item.key,
      'priority': item.priority,
      'times_sampled': item.times_sampled,
      'fields': {
        name: {
          'dtype': str(np.asarray(value).dtype),
          'shape': list(np.shape(value)),
          'values': np.asarray(value).tolist(),
        }
        for name, value in item.fields.items()
      },
    }
    for item in look.items
  ]
  return {'fewer': look.fewer or None, 'samples': samples}
