"""Draws the inspector's tables and bars in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import console as rich_console
from rich import markup
from rich import table as rich_table
from rich import text as rich_text

from murmuration.replay.inspect import read as reading
from murmuration.replay.inspect import report as inspect_report
from murmuration.replay.inspect import words

_BINS = 16
_BAR_WIDTH = 40
# Positive values whose ratio exceeds this get geometric bins.
_WIDE = 50.0


def report(found: inspect_report.Report) -> rich_console.Group:
  parts: list[Any] = [rich_text.Text(f'replay of {found.title}', style='bold')]
  if found.note:
    parts.append(rich_text.Text(found.note, style='yellow'))
  if len(found.shards) > 1:
    parts += [rich_text.Text(''), _overview(found)]
  for shard in found.shards:
    parts.append(rich_text.Text(''))
    parts.append(_heading(shard))
    for table in shard.tables.values():
      parts.append(_table(found, shard, table))
  return rich_console.Group(*parts)


def samples(
  found: inspect_report.Report, looks: inspect_report.Looks
) -> rich_console.Group:
  """Renders the items that were looked at, and what is missing."""
  parts: list[Any] = [*_left_out(found, looks)]
  for (label, name), look in looks.items():
    if isinstance(look, str):
      continue
    for item in look.items:
      grid = rich_table.Table.grid(padding=(0, 2))
      for field, value in item.fields.items():
        grid.add_row(f'  {markup.escape(field)}', words.describe(value))
      head = (
        f'{label}, table {name}, item {item.key}: priority '
        f'{item.priority:.5g}, sampled {item.times_sampled} times'
      )
      parts += [rich_text.Text(''), rich_text.Text(head, style='bold'), grid]
  return rich_console.Group(*parts)


def bins(values: np.ndarray, weights: np.ndarray) -> tuple[Any, Any]:
  """Edges [n + 1] of a histogram, and its parts of the whole [n]."""
  low, high = float(values.min()), float(values.max())
  if low == high:
    edges = np.array([low - 0.5, high + 0.5])
  elif low > 0 and high / low > _WIDE:
    edges = np.geomspace(low, high, _BINS + 1)
  else:
    edges = np.linspace(low, high, _BINS + 1)
  # Exact ends: rounding must not leave values out.
  edges[0], edges[-1] = min(low, edges[0]), max(high, edges[-1])
  counts, _ = np.histogram(values, edges, weights=weights)
  return edges, counts / counts.sum()


def histogram(
  found: inspect_report.Report,
  looks: inspect_report.Looks,
  values: Mapping[str, tuple[np.ndarray, np.ndarray]],
  bars: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> rich_console.Group:
  """Renders bars of the `bins` of priorities, and what is missing.

  `values` by table, with their weights.
  """
  parts: list[Any] = []
  for name, (edges, counts) in bars.items():
    own = values[name]
    title = f'{name}: priority of {len(own[0])} items, {words.summary(*own)}'
    grid = rich_table.Table.grid(padding=(0, 1))
    for justify in ('right', 'left', 'right'):
      grid.add_column(justify=justify)
    for low, high, part in zip(edges[:-1], edges[1:], counts):
      bar = '#' * int(np.ceil(_BAR_WIDTH * part / counts.max()))
      grid.add_row(f'{low:.4g} to {high:.4g}', bar, f'{part:.1%}')
    parts += [rich_text.Text(''), rich_text.Text(title, style='bold'), grid]
  return rich_console.Group(*parts, *_left_out(found, looks))


def show(what: rich_console.Group) -> None:
  rich_console.Console(highlight=False).print(what)


def _left_out(
  found: inspect_report.Report, looks: inspect_report.Looks
) -> list[rich_text.Text]:
  sentences = inspect_report.left_out(found, looks)
  return [rich_text.Text(sentence, style='yellow') for sentence in sentences]


def _heading(shard: reading.Shard) -> rich_text.Text:
  text = f'{shard.label} at {shard.source}'
  if shard.saved and shard.saved.meta:
    meta = ', '.join(f'{k} {v}' for k, v in shard.saved.meta.items())
    text += f' ({meta})'
  if shard.error:
    return rich_text.Text(f'{text}: {shard.error}', style='red')
  return rich_text.Text(text)


def _overview(found: inspect_report.Report) -> rich_table.Table:
  """A row for each shard and table, and the totals."""
  view = rich_table.Table(box=None, pad_edge=False, header_style='bold')
  for column in ('shard', 'table', 'items', 'inserts/s', 'samples/s', 'state'):
    number = column in ('items', 'inserts/s', 'samples/s')
    view.add_column(column, justify='right' if number else 'left')

  def row(label, name, size, speed, state, style=None):
    speeds = map(words.short, speed) if speed else ('-', '-')
    view.add_row(label, name, f'{size:,}', *speeds, state, style=style)

  for shard in found.shards:
    if shard.error:
      view.add_row(shard.label, '-', '-', '-', '-', 'does not answer')
    for name, table in shard.tables.items():
      rates = found.rates.get((shard.label, name))
      speed = rates and (rates.inserts, rates.samples)
      row(shard.label, name, table.size, speed, words.limiter_state(table))
  for name, sums in inspect_report.totals(found).items():
    both = found.rates and (sums['inserts_s'], sums['samples_s'])
    row('total', name, sums['items'], both, '', 'bold')
  return view


def _table(
  found: inspect_report.Report, shard: reading.Shard, table: reading.Table
) -> rich_table.Table:
  rates = found.rates.get((shard.label, table.name))
  state = words.limiter_state(table)
  held = 'wait:' in state
  rows: list[tuple[str, Any]] = [
    ('items', words.size(table)),
    (
      'drawn',
      f'{words.selector(table.sampler)}; removed: '
      f'{words.selector(table.remover)}'
      + (
        f'; gone after {table.max_times_sampled} sample(s)'
        if table.max_times_sampled
        else ''
      ),
    ),
    ('limiter', words.limiter_rule(table.limiter)),
    ('', rich_text.Text(state, style='yellow' if held else 'green')),
    ('counts', words.total_counts(table)),
  ]
  if rates:
    rows += [('rates', words.speed(rates)), ('waiting', words.waiting(rates))]
  rows += [
    ('bytes', words.memory(table)),
    ('columns', words.columns(table)),
  ]
  grid = rich_table.Table.grid(padding=(0, 2))
  grid.add_column(style='bold')
  grid.add_column(overflow='fold')
  grid.add_row('  table', rich_text.Text(table.name, style='bold cyan'))
  for name, value in rows:
    shown = rich_text.Text(value) if isinstance(value, str) else value
    grid.add_row(f'  {name}', shown)
  return grid
