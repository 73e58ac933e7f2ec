"""Sentences of the inspector: what the numbers of a table mean."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np

from murmuration.replay import packing
from murmuration.replay import table_checks
from murmuration.replay.inspect import read as reading

# Waits below this part of the time are not mentioned.
_SOME = 0.01


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


def rates(
  before: reading.Shard, after: reading.Shard, name: str
) -> Rates | None:
  """Rates of a table; None unless both readings are of the same server."""
  old, new = before.tables.get(name), after.tables.get(name)
  span = after.time - before.time
  if old is None or new is None or span <= 0:
    return None
  inserts = new.limiter.inserts - old.limiter.inserts
  samples = new.limiter.samples - old.limiter.samples
  if inserts < 0 or samples < 0:
    return None  # Another server now, or the table was reset.
  parts = {
    state: min(1.0, max(0, ms - old.worker_ms.get(state, 0)) / (1000 * span))
    for state, ms in new.worker_ms.items()
  }
  return Rates(inserts / span, samples / span, parts)


def selector(options: Any) -> str:
  """Describes a sampler or remover."""
  if options.HasField('prioritized'):
    return f'by priority^{options.prioritized.priority_exponent:g}'
  if options.HasField('heap'):
    return f'{"lowest" if options.heap.min_heap else "highest"} priority first'
  for kind, words in (
    ('fifo', 'oldest first'),
    ('lifo', 'newest first'),
    ('uniform', 'uniform'),
  ):
    if getattr(options, kind):
      return words
  return 'unknown'


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


def limiter_state(table: reading.Table) -> str:
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
  if inserts_wait:
    return f'inserts wait: {limiter.behind:,.0f} samples behind'
  if samples_wait:
    return f'samples wait: {-limiter.behind:,.0f} samples ahead'
  if limiter.unlimited or limiter.is_queue:
    return 'neither waits'
  side = 'behind' if limiter.behind >= 0 else 'ahead'
  return f'neither waits: {abs(limiter.behind):,.0f} samples {side}'


def waiting(found: Rates) -> str:
  """Which side waited for the other between the two readings."""
  parts = found.parts
  for_samples = parts.get('waiting_for_sampling', 0.0)
  for_inserts = parts.get('waiting_for_inserts', 0.0)
  said = []
  if for_samples >= _SOME:
    said.append(f'writers waited for samplers {for_samples:.0%} of the time')
  if for_inserts >= _SOME:
    said.append(f'samplers waited for writers {for_inserts:.0%} of the time')
  sleeping = parts.get('sleeping', 0.0)
  if not said:
    said.append('nobody waited')
  if sleeping >= _SOME:
    said.append(f'idle {sleeping:.0%}')
  return ', '.join(said)


def speed(found: Rates) -> str:
  text = f'{short(found.inserts)} inserts/s, {short(found.samples)} samples/s'
  if found.inserts > 0 and found.samples > 0:
    text += f' ({found.samples / found.inserts:.2f} samples per insert)'
  return text


def size(table: reading.Table) -> str:
  text = (
    f'{table.size:,} of {table.max_size:,} items '
    f'({table.size / table.max_size:.0%})'
  )
  if table.episodes is not None:
    text += f'; writer episodes in it: {table.episodes:,}'
  return text


def memory(table: reading.Table) -> str:
  """Estimated bytes, if the signature gives all shapes."""
  if table.bytes_per_item is None:
    return 'unknown: the signature does not give all shapes'
  whole = table.bytes_per_item * table.size
  return (
    f'{number_of_bytes(table.bytes_per_item)} per item, '
    f'{number_of_bytes(whole)} in all (estimated from the signature, '
    'uncompressed)'
  )


def columns(table: reading.Table) -> str:
  named = reading.leaves(table.signature)
  if not named:
    return 'unknown: the table has no signature'
  if len(named) == 1:
    spec = named[0][1]
    layout = None
    with contextlib.suppress(packing.WrongFormat):  # Looks report it.
      layout = packing.from_signature(spec)
    if layout is not None:
      leading = spec.shape.as_list()[:-1]
      what = f'transitions {leading}' if leading else 'one transition'
      action = 'int32' if layout.discrete else 'float32'
      return (
        f'{what} in one {layout.dtype} column: observation '
        f'{list(layout.observation_shape)}, action {action} '
        f'{list(layout.action_shape)}'
      )
  return ', '.join(
    f'{name} {spec.dtype.name} {spec.shape.as_list()}'
    if spec.shape.rank is not None
    else f'{name} {spec.dtype.name} of any shape'
    for name, spec in named
  )


def total_counts(table: reading.Table) -> str:
  """Counts since the server started; a restored one continues them."""
  limiter = table.limiter
  return (
    f'{limiter.inserts:,} inserted, {limiter.samples:,} sampled; '
    f'{table.unique_samples:,} items sampled at least once'
  )


def summary(values: np.ndarray, weights: np.ndarray) -> str:
  mean = float(np.average(values, weights=weights))
  return f'mean {mean:.4g}, least {values.min():.4g}, most {values.max():.4g}'


def describe(value: np.ndarray, limit: int = 6) -> str:
  """Dtype, shape and first numbers of a field."""
  value = np.asarray(value)
  flat = value.reshape(-1)
  numbers = ' '.join(f'{number:.5g}' for number in flat[:limit].tolist())
  more = f' ... ({flat.size:,} numbers)' if flat.size > limit else ''
  return f'{value.dtype} {list(value.shape)}  {numbers}{more}'


def short(value: float) -> str:
  """Formats 12345.6 as '12,346', and 0.25 as '0.25'."""
  return f'{value:,.0f}' if abs(value) >= 10 or not value else f'{value:.2g}'


def number_of_bytes(count: float) -> str:
  """Formats 1536 as '1.5 kB'; a kB is 1,000 bytes."""
  for unit in ('B', 'kB', 'MB'):
    if count < 1000:
      return f'{count:.0f} B' if unit == 'B' else f'{count:.1f} {unit}'
    count /= 1000
  return f'{count:.1f} GB'
