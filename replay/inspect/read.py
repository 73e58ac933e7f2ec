"""Reads the state of replay tables, from live servers and from checkpoints.

This changes nothing: it asks a server for its `server_info`, or reads the files
of a checkpoint. Looking at the items of a live table changes it: items.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import time
from typing import Any

import reverb
import tree

from murmuration.replay import checkpoints
from murmuration.replay import table_checks
from murmuration.replay.inspect import target as inspect_target


class Failed(Exception):
  """The inspection cannot continue; the message says what to change."""


@dataclasses.dataclass(frozen=True)
class Table:
  """A table as its server or its checkpoint describes it.

  Attributes:
    size, max_size: items.
    max_times_sampled: samples after which an item is removed; 0: never.
    sampler, remover: Reverb's `KeyDistributionOptions`.
    episodes: number of episodes that items refer to.
    unique_samples: items sampled at least once.
    signature: (nested) tf.TensorSpec, or None.
    worker_ms: time the table's thread has spent, by state; empty offline.
  """

  name: str
  size: int
  max_size: int
  max_times_sampled: int
  sampler: Any
  remover: Any
  limiter: table_checks.Limiter
  episodes: int | None
  unique_samples: int
  signature: Any
  worker_ms: Mapping[str, int]

  @property
  def bytes_per_item(self) -> int | None:
    """Uncompressed; None without a signature of fixed shapes."""
    specs = [spec for _, spec in leaves(self.signature)]
    if not specs or not all(spec.shape.is_fully_defined() for spec in specs):
      return None
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)


@dataclasses.dataclass(frozen=True)
class Shard:
  """One server or one checkpoint.

  Attributes:
    label: 'replay' or 'shard 2'.
    source: its address, or the directory of its checkpoint.
    offline: whether it is a checkpoint.
    time: when it was read, on the monotonic clock, in seconds.
    tables: by name; empty if there is an error.
    error: why it could not be read.
  """

  label: str
  source: str
  offline: bool
  time: float
  tables: Mapping[str, Table]
  saved: checkpoints.Saved | None = None
  error: str | None = None


def read(target: inspect_target.Target, timeout_s: float) -> list[Shard]:
  """Reads the live shards of a target, or its checkpoints if none answers.

  Raises:
    Failed: neither could be read.
  """
  shards = [
    read_server(address, timeout_s, label)
    for label, address in target.addresses.items()
  ]
  if all(shard.error for shard in shards):
    saved = [
      read_checkpoint(path, f'{label}, saved')
      for label, path in target.saved().items()
    ]
    if not saved and target.ended():
      raise Failed(
        'The run has ended, and had saved no replay: nothing is left to look '
        'into. run.replay_checkpoint_s says how often a run saves it.'
      )
    if all(shard.error for shard in saved):
      raise Failed(' '.join(str(shard.error) for shard in [*shards, *saved]))
    return saved
  return shards


def read_server(address: str, timeout_s: float, label: str = 'replay') -> Shard:
  """Reads a live server; sets `error` if it does not answer."""
  tables, error = {}, None
  try:
    info = reverb.Client(address).server_info(timeout=math.ceil(timeout_s))
    tables = {name: _from_info(table) for name, table in info.items()}
  except reverb.errors.DeadlineExceededError:
    error = (
      f'No Reverb server answered at {address} within {timeout_s:g} s. Check '
      'the address (RUN/replay/shard_*.json has those of a run) and that the '
      'run is alive, or raise --timeout.'
    )
  except RuntimeError as e:
    error = (
      f'{address} cannot be asked as a Reverb server '
      f'({str(e).splitlines()[0]}). Check the address.'
    )
  return Shard(label, address, False, time.monotonic(), tables, error=error)


def read_checkpoint(path: pathlib.Path, label: str = 'replay') -> Shard:
  """Reads a generation, or the newest whole one of a checkpoint directory."""
  error = f'{path} holds no checkpoint.'
  one = (path / checkpoints.TABLES).exists()
  for candidate in [path] if one else checkpoints.generations(path):
    try:
      saved = checkpoints.read(candidate)
      found, now = _from_files(candidate), time.monotonic()
      return Shard(label, str(candidate), True, now, found, saved)
    except OSError as e:
      error = f'The checkpoint is broken: {e}'
  return Shard(label, str(path), True, time.monotonic(), {}, error=error)


def choose(shards: Sequence[Shard], table: str | None) -> list[Shard]:
  """Shards with only the given table; all tables if None.

  Raises:
    Failed: no shard has the table.
  """
  if table is None:
    return list(shards)
  names = sorted({name for shard in shards for name in shard.tables})
  if table not in names:
    raise Failed(
      f'There is no table {table!r}, only {", ".join(map(repr, names))}. '
      'Choose one of these with --table.'
    )
  return [
    dataclasses.replace(
      shard, tables={n: t for n, t in shard.tables.items() if n == table}
    )
    for shard in shards
  ]


def leaves(signature: Any) -> list[tuple[str, Any]]:
  """Names and specs of the columns of an item, in the order of its data."""
  if signature is None:
    return []
  flat = tree.flatten_with_path(signature)
  return [
    ('/'.join(map(str, path)) or spec.name or 'item', spec)
    for path, spec in flat
  ]


def _from_info(info: Any) -> Table:
  times = info.table_worker_time
  return Table(
    name=info.name,
    size=info.current_size,
    max_size=info.max_size,
    max_times_sampled=info.max_times_sampled,
    sampler=info.sampler_options,
    remover=info.remover_options,
    limiter=table_checks.live_limiter(info),
    episodes=info.num_episodes,
    unique_samples=info.num_unique_samples,
    signature=info.signature,
    worker_ms={
      field.name.removesuffix('_ms'): getattr(times, field.name)
      for field in times.DESCRIPTOR.fields
    },
  )


def _from_files(path: pathlib.Path) -> dict[str, Table]:
  saved = checkpoints.read_tables(path)
  sizes = dict.fromkeys(saved, 0)
  for item in checkpoints.read_items(path):
    sizes[item.table] = sizes.get(item.table, 0) + 1
  tables = {}
  for name, table in saved.items():
    limiter = table.rate_limiter
    tables[name] = Table(
      name=name,
      size=sizes[name],
      max_size=table.max_size,
      max_times_sampled=table.max_times_sampled,
      sampler=table.sampler,
      remover=table.remover,
      limiter=table_checks.limiter_of(
        limiter, limiter.insert_count, limiter.sample_count
      ),
      episodes=None,
      unique_samples=table.num_unique_samples,
      signature=checkpoints.decode_signature(table),
      worker_ms={},
    )
  return tables
