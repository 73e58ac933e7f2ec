"""What the inspector shows: sentences, tables, bars, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import sys
from typing import Any

import numpy as np
from rich import console as rich_console
from rich import live as rich_live
from rich import markup
from rich import table as rich_table
from rich import text as rich_text

from murmuration.replay import table_checks
from murmuration.replay.inspect import read

# Waits below this part of the time are not mentioned.
_SOME = 0.01
_BINS = 16
_BAR_WIDTH = 40
# Positive values whose ratio exceeds this get geometric bins.
_WIDE = 50.0


# Sentences.


def selector(options: Any) -> str:
  """Describes a sampler or remover."""
  if options.HasField('prioritized'):
    return f'by priority^{options.prioritized.priority_exponent:g}'
  if options.HasField('heap'):
    return f'{"lowest" if options.heap.min_heap else "highest"} priority first'
  if options.fifo:
    return 'oldest first'
  return 'newest first' if options.lifo else 'uniform'


def limiter_rule(limiter: table_checks.Limiter) -> str:
  if limiter.unlimited:
    return f'samples from size {limiter.min_size_to_sample:,} on'
  if limiter.is_queue:
    return f'a queue of {limiter.max_diff:,.0f} items'
  buffer = (limiter.max_diff - limiter.min_diff) / 2
  return (
    f'{limiter.samples_per_insert:g} samples per insert +- {buffer:,.0f} '
    f'samples, from size {limiter.min_size_to_sample:,} on'
  )


def limiter_state(table: read.Table) -> str:
  """Which side the limiter blocks now."""
  limiter, size = table.limiter, table.size
  if size < limiter.min_size_to_sample:
    return f'samples wait: {size:,} of {limiter.min_size_to_sample:,} items'
  inserts_wait = limiter.inserts_wait(size)
  samples_wait = limiter.samples_wait(size)
  if limiter.is_queue and inserts_wait:
    return 'inserts wait: the queue is full'
  if inserts_wait and samples_wait:
    return 'both wait: inserts and samples block each other'
  if limiter.unlimited or limiter.is_queue:
    return 'samples wait: it is empty' if samples_wait else 'neither waits'
  side = 'behind' if limiter.behind >= 0 else 'ahead'
  distance = f'{abs(limiter.behind):,.0f} samples {side}'
  if inserts_wait:
    return f'inserts wait: {distance}'
  return f'{"samples wait" if samples_wait else "neither waits"}: {distance}'


def waiting(rates: read.Rates) -> str:
  """Which side waited for the other between the two readings."""
  said = [
    f'{words} {rates.parts.get(state, 0.0):.0%} of the time'
    for state, words in (
      ('waiting_for_sampling', 'writers waited for samplers'),
      ('waiting_for_inserts', 'samplers waited for writers'),
    )
    if rates.parts.get(state, 0.0) >= _SOME
  ]
  idle = rates.parts.get('sleeping', 0.0)
  return ', '.join(said or ['nobody waited']) + f', idle {idle:.0%}'


def speed(rates: read.Rates) -> str:
  text = f'{_short(rates.inserts)} inserts/s, {_short(rates.samples)} samples/s'
  if rates.inserts > 0 and rates.samples > 0:
    text += f' ({rates.samples / rates.inserts:.2f} samples per insert)'
  return text


def columns(signature: Any) -> str:
  return ', '.join(
    f'{name} {spec.dtype.name} {spec.shape}'
    for name, spec in read.leaves(signature)
  )


def _num_bytes(signature: Any) -> int | None:
  """Bytes of an item, uncompressed; None if not all shapes are known."""
  specs = [spec for _, spec in read.leaves(signature)]
  if not specs or not all(spec.shape.is_fully_defined() for spec in specs):
    return None
  return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)


def _short(value: float) -> str:
  """Formats 12345.6 as '12,346', and 0.25 as '0.25'."""
  return f'{value:,.0f}' if abs(value) >= 10 or not value else f'{value:.2g}'


def _values(value: Any, limit: int = 6) -> str:
  """Dtype, shape and first numbers of a field."""
  value = np.asarray(value)
  numbers = ' '.join(f'{n:.5g}' for n in value.reshape(-1)[:limit].tolist())
  more = f' ... ({value.size:,} numbers)' if value.size > limit else ''
  return f'{value.dtype} {list(value.shape)}  {numbers}{more}'


# In the terminal.


def draw(what: Any) -> None:
  rich_console.Console(highlight=False).print(what)


@contextlib.contextmanager
def screen(as_json: bool) -> Iterator[Callable[[read.Report | str], None]]:
  """Gives a function that shows one report, or sentence, after the other."""
  console = rich_console.Console(highlight=False)
  if console.is_terminal and not as_json:
    with rich_live.Live(console=console, auto_refresh=False) as shown:
      yield lambda what: shown.update(
        rich_text.Text(what) if isinstance(what, str) else report(what),
        refresh=True,
      )
    return

  def update(what: read.Report | str) -> None:
    if isinstance(what, str):
      print(what, file=sys.stderr)
    elif as_json:
      print(json.dumps(as_dict(what)), flush=True)
    else:
      console.print(report(what))

  yield update


def report(found: read.Report) -> rich_console.Group:
  parts: list[Any] = [rich_text.Text(f'replay of {found.title}', style='bold')]
  if found.note:
    parts.append(rich_text.Text(found.note, style='yellow'))
  if len(found.shards) > 1:
    parts += [rich_text.Text(''), _overview(found)]
  for shard in found.shards:
    head = f'{shard.label} at {shard.source}'
    if shard.saved:
      head += ''.join(f', {k} {v}' for k, v in shard.saved.meta.items())
    if shard.error:
      head = f'{head}: {shard.error}'
    style = 'red' if shard.error else ''
    parts += [rich_text.Text(''), rich_text.Text(head, style=style)]
    parts += map(_table, shard.tables)
  return rich_console.Group(*parts)


def _overview(found: read.Report) -> rich_table.Table:
  """A row for each shard and table, and the totals."""
  view = rich_table.Table(box=None, pad_edge=False, header_style='bold')
  for column in ('shard', 'table', 'items', 'inserts/s', 'samples/s', 'state'):
    number = column in ('items', 'inserts/s', 'samples/s')
    view.add_column(column, justify='right' if number else 'left')
  for shard in found.shards:
    if shard.error:
      view.add_row(shard.label, '-', '-', '-', '-', 'does not answer')
    for table in shard.tables:
      rates = table.rates
      view.add_row(
        shard.label,
        table.name,
        f'{table.size:,}',
        _short(rates.inserts) if rates else '-',
        _short(rates.samples) if rates else '-',
        limiter_state(table),
      )
  for name, sums in read.totals(found).items():
    numbers = (sums[key] for key in ('items', 'inserts_s', 'samples_s'))
    view.add_row('total', name, *map(_short, numbers), style='bold')
  return view


def _table(table: read.Table) -> rich_table.Table:
  limiter, state = table.limiter, limiter_state(table)
  drawn = f'{selector(table.sampler)}; removed: {selector(table.remover)}'
  if table.max_times_sampled:
    drawn += f'; gone after {table.max_times_sampled} sample(s)'
  rows: list[tuple[str, Any]] = [
    (
      'items',
      f'{table.size:,} of {table.max_size:,} items '
      f'({table.size / table.max_size:.0%})',
    ),
    ('drawn', drawn),
    ('limiter', limiter_rule(limiter)),
    ('', rich_text.Text(state, 'yellow' if 'wait:' in state else 'green')),
    ('counts', f'{limiter.inserts:,} inserted, {limiter.samples:,} sampled'),
  ]
  if table.rates:
    rows.append(('rates', speed(table.rates)))
    rows.append(('waiting', waiting(table.rates)))
  if size := _num_bytes(table.signature):
    each, all_of_them = f'{size:,} B', f'{size * table.size / 1e6:,.1f} MB'
    rows.append(('bytes', f'{each} per item, {all_of_them}, uncompressed'))
  if table.signature is not None:
    rows.append(('columns', columns(table.signature)))
  grid = rich_table.Table.grid(padding=(0, 2))
  grid.add_column(style='bold')
  grid.add_column(overflow='fold')
  grid.add_row('  table', rich_text.Text(table.name, style='bold cyan'))
  for name, value in rows:
    shown = rich_text.Text(value) if isinstance(value, str) else value
    grid.add_row(f'  {name}', shown)
  return grid


def samples(found: read.Report) -> rich_console.Group:
  """The items that were looked at, field by field."""
  parts = _missing(found)
  for shard, table in ((s, t) for s in found.shards for t in s.tables):
    for item in table.items:
      grid = rich_table.Table.grid(padding=(0, 2))
      for field, value in item.fields.items():
        grid.add_row(f'  {markup.escape(field)}', _values(value))
      head = (
        f'{shard.label}, table {table.name}, item {item.key}: priority '
        f'{item.priority:.5g}, sampled {item.times_sampled} times'
      )
      parts += [rich_text.Text(''), rich_text.Text(head, style='bold'), grid]
  return rich_console.Group(*parts)


def histogram(found: read.Report) -> rich_console.Group:
  """Bars of the priorities of each table."""
  parts: list[Any] = []
  for name, (values, weights) in read.priorities(found).items():
    mean = np.average(values, weights=weights)
    title = f'{name}: priority of {len(values)} items, mean {mean:.4g}'
    grid = rich_table.Table.grid(padding=(0, 1))
    for justify in ('right', 'left', 'right'):
      grid.add_column(justify=justify)
    edges, shares = bins(values, weights)
    for low, high, share in zip(edges[:-1], edges[1:], shares):
      bar = '#' * int(np.ceil(_BAR_WIDTH * share / shares.max()))
      grid.add_row(f'{low:.4g} to {high:.4g}', bar, f'{share:.1%}')
    parts += [rich_text.Text(''), rich_text.Text(title, style='bold'), grid]
  return rich_console.Group(*parts, *_missing(found))


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


def _missing(found: read.Report) -> list[Any]:
  """A sentence for each thing that the items looked at do not show."""
  said = [found.note] if found.note else []
  said += [f'Without {s.label}: {s.error}' for s in found.shards if s.error]
  said += [
    f'Without {shard.label}, table {table.name}: {table.missing}'
    for shard in found.shards
    for table in shard.tables
    if table.missing
  ]
  return [rich_text.Text(sentence, style='yellow') for sentence in said]


# As JSON.


def as_dict(found: read.Report, bars: bool = False) -> dict[str, Any]:
  """The report for scripts; with `bars` a histogram instead of the items."""
  values: dict[str, Any] = {
    'target': found.title,
    'note': found.note,
    'shards': [
      {
        'shard': shard.label,
        'source': shard.source,
        'kind': 'checkpoint' if shard.saved else 'server',
        'error': shard.error or None,
        'saved_at': shard.saved.time if shard.saved else None,
        'meta': shard.saved.meta if shard.saved else None,
        'tables': [_table_dict(table, bars) for table in shard.tables],
      }
      for shard in found.shards
    ],
    'totals': read.totals(found),
  }
  if bars:
    drawn = {name: bins(*p) for name, p in read.priorities(found).items()}
    values['histogram'] = {
      name: {'edges': edges.tolist(), 'parts': parts.tolist()}
      for name, (edges, parts) in drawn.items()
    }
  return values


def _table_dict(table: read.Table, bars: bool) -> dict[str, Any]:
  rates = table.rates
  values = {
    'table': table.name,
    'items': table.size,
    'max_items': table.max_size,
    'max_times_sampled': table.max_times_sampled,
    'sampler': selector(table.sampler),
    'remover': selector(table.remover),
    'limiter': dataclasses.asdict(table.limiter),
    'limiter_rule': limiter_rule(table.limiter),
    'limiter_state': limiter_state(table),
    'inserts_s': rates.inserts if rates else None,
    'samples_s': rates.samples if rates else None,
    'worker_time': rates.parts if rates else None,
    'bytes_per_item': _num_bytes(table.signature),
    'columns': [
      {
        'name': name,
        'dtype': spec.dtype.name,
        'shape': None if spec.shape.rank is None else spec.shape.as_list(),
      }
      for name, spec in read.leaves(table.signature)
    ],
  }
  if table.missing:
    values['not_looked'] = table.missing
  if table.items and not bars:
    values['samples'] = [
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
      for item in table.items
    ]
  return values
