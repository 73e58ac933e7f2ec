"""Makes Reverb restore a checkpoint with the settings of the code.

Reverb takes sampler, remover, sizes and rate limiter of a restored table from
the checkpoint. So what is loaded is a copy, in which the description of each
table has been rewritten from the tables of the code; the items and their data
are the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import logging
import math
import os
import pathlib
import shutil

import reverb
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from tensorflow.python.saved_model import nested_structure_coder

from replay.checkpoints import files

_logger = logging.getLogger(__name__)


class Refused(ValueError):
  """The tables of the code cannot take what the checkpoint holds."""


def prepare(
  source: pathlib.Path, tables: Sequence[reverb.Table], target: pathlib.Path
) -> None:
  """Writes a copy of a checkpoint that restores `tables` as they are.

  Args:
    source: directory of Reverb's files; it is only read.
    tables: of the server to be.
    target: directory to make, on the same file system or another.

  Raises:
    Refused: the tables or their signatures differ.
    files.Broken: a file cannot be read.
  """
  wanted = {table.name: _info(table) for table in tables}
  saved = read_tables(source)
  _check_names(source, set(saved), set(wanted))
  for name in wanted:
    _check_signature(source, saved[name], wanted[name])
  priorities: dict[str, list[float]] = {name: [] for name in wanted}
  for item in read_items(source):
    priorities[item.table].append(item.priority)
  gone = {name: _surplus(priorities[name], wanted[name]) for name in wanted}
  target.mkdir(parents=True)
  files.write_records(
    target / files.TABLES,
    (
      rewrite(
        saved[name], info, len(priorities[name]) - len(gone[name])
      ).SerializeToString()
      for name, info in wanted.items()
    ),
  )
  if any(gone.values()):
    _logger.warning(
      '%d items of %s are left out: the tables are smaller now.',
      sum(map(len, gone.values())),
      source,
    )
    files.write_records(target / files.ITEMS, _without(source, gone))
  else:
    link(source / files.ITEMS, target / files.ITEMS)
  link(source / files.CHUNKS, target / files.CHUNKS)
  (target / files.DONE).touch()


def excerpt(
  source: pathlib.Path,
  table: reverb.Table,
  items: Sequence[schema_pb2.PrioritizedItem],
  target: pathlib.Path,
) -> None:
  """Writes a copy of a checkpoint that restores `table` with some items only.

  Args:
    source: directory of Reverb's files; it is only read.
    table: of the server to be.
    items: of this table; they become items that were never sampled.
    target: directory to make.
  """
  target.mkdir(parents=True)
  found = rewrite(read_tables(source)[table.name], _info(table), len(items))
  files.write_records(target / files.TABLES, [found.SerializeToString()])
  fresh = []
  for item in items:
    fresh.append(schema_pb2.PrioritizedItem())
    fresh[-1].CopyFrom(item)
    fresh[-1].times_sampled = 0
  files.write_records(
    target / files.ITEMS, (item.SerializeToString() for item in fresh)
  )
  link(source / files.CHUNKS, target / files.CHUNKS)
  (target / files.DONE).touch()


def rewrite(
  saved: checkpoint_pb2.PriorityTableCheckpoint,
  wanted: schema_pb2.TableInfo,
  num_items: int,
) -> checkpoint_pb2.PriorityTableCheckpoint:
  """The description of a table with items as saved and settings as wanted.

  The limiter's counters decide who may go on. Inserts count on from the
  checkpoint. Samples are set so that neither side is blocked at once: inserts *
  samples_per_insert - samples stands in the middle of [min_diff, max_diff] when
  min_size items are there. That moves the count of samples by half of that
  range at most. A queue counts what waits in it, so it has exactly that; a
  limiter without a ratio keeps its count.
  """
  table = checkpoint_pb2.PriorityTableCheckpoint()
  table.CopyFrom(saved)
  table.max_size = wanted.max_size
  table.max_times_sampled = wanted.max_times_sampled
  table.sampler.CopyFrom(wanted.sampler_options)
  table.remover.CopyFrom(wanted.remover_options)
  table.ClearField('signature')
  if wanted.HasField('signature'):
    table.signature.CopyFrom(wanted.signature)
  old, new = saved.rate_limiter, wanted.rate_limiter_info
  inserts = max(old.insert_count, num_items)
  samples = old.sample_count
  if not unlimited(new):
    ratio = new.samples_per_insert
    if is_queue(new):
      cursor: float = num_items
    else:
      missing = max(0, new.min_size_to_sample - num_items)
      cursor = (new.min_diff + new.max_diff) / 2 - missing * ratio
    # Counting more inserts, with as many deletes, keeps `samples` from
    # becoming negative and changes nothing else.
    inserts = max(inserts, math.ceil(cursor / ratio))
    samples = round(inserts * ratio - cursor)
  table.rate_limiter.CopyFrom(
    checkpoint_pb2.RateLimiterCheckpoint(
      samples_per_insert=new.samples_per_insert,
      min_diff=new.min_diff,
      max_diff=new.max_diff,
      min_size_to_sample=new.min_size_to_sample,
      insert_count=inserts,
      sample_count=samples,
      delete_count=inserts - num_items,
    )
  )
  return table


def _info(table: reverb.Table) -> schema_pb2.TableInfo:
  """What the code says of a table, also of one without a server."""
  return schema_pb2.TableInfo.FromString(table.internal_table.info())


def unlimited(limiter: schema_pb2.RateLimiterInfo) -> bool:
  """Whether a limiter holds no ratio: only its minimum size counts."""
  # MinSize sets these to the largest and smallest float.
  return limiter.max_diff - limiter.min_diff > 1e300


def is_queue(limiter: schema_pb2.RateLimiterInfo) -> bool:
  """Whether a limiter is that of Reverb's queue or stack."""
  return (
    limiter.samples_per_insert == 1
    and limiter.min_size_to_sample == 1
    and limiter.min_diff == 0
  )


def read_tables(
  source: pathlib.Path,
) -> dict[str, checkpoint_pb2.PriorityTableCheckpoint]:
  """The descriptions of the tables of a checkpoint, by name."""
  tables = map(
    checkpoint_pb2.PriorityTableCheckpoint.FromString,
    files.read_records(source / files.TABLES),
  )
  return {table.table_name: table for table in tables}


def read_items(source: pathlib.Path) -> Iterator[schema_pb2.PrioritizedItem]:
  """The items of a checkpoint, the oldest of each table first.

  One at a time: a million of them at once would take a gigabyte.
  """
  for record in files.read_records(source / files.ITEMS):
    yield schema_pb2.PrioritizedItem.FromString(record)


def link(source: pathlib.Path, target: pathlib.Path) -> None:
  """A second name for a file, or a copy where there can be none."""
  try:
    os.link(source, target)
  except OSError:
    shutil.copyfile(source, target)


def _check_names(source: pathlib.Path, saved: set, wanted: set) -> None:
  if saved == wanted:
    return
  raise Refused(
    f'The checkpoint {source} has the tables {sorted(saved)}, but the server '
    f'is made with {sorted(wanted)}. Make the same tables, or move the '
    'checkpoint away to start empty.'
  )


def _check_signature(
  source: pathlib.Path,
  saved: checkpoint_pb2.PriorityTableCheckpoint,
  wanted: schema_pb2.TableInfo,
) -> None:
  if saved.signature == wanted.signature:
    return
  raise Refused(
    f'Table {wanted.name!r} of the checkpoint {source} holds '
    f'{decode_signature(saved)}, but the server is made for '
    f'{decode_signature(wanted)}. Restore it with the environment and layout '
    'that wrote it, or move the checkpoint away to start empty.'
  )


def decode_signature(message) -> object:
  """The (nested) tf.TensorSpec of a table or its checkpoint; None if none."""
  if not message.HasField('signature'):
    return None
  return nested_structure_coder.decode_proto(message.signature)


def _surplus(
  priorities: Sequence[float], wanted: schema_pb2.TableInfo
) -> set[int]:
  """Which of the items, oldest first, a table of this size would not hold."""
  number = max(0, len(priorities) - wanted.max_size)
  order: Sequence[int] = range(len(priorities))
  if wanted.remover_options.lifo:
    order = order[::-1]
  elif wanted.remover_options.HasField('heap'):
    order = sorted(
      order,
      key=lambda index: priorities[index],
      reverse=not wanted.remover_options.heap.min_heap,
    )
  # A remover that draws at random has most likely removed the oldest items.
  return set(order[:number])


def _without(
  source: pathlib.Path, gone: Mapping[str, set[int]]
) -> Iterator[bytes]:
  """The items of a checkpoint without those of these numbers by table."""
  seen = dict.fromkeys(gone, 0)
  for item in read_items(source):
    if seen[item.table] not in gone[item.table]:
      yield item.SerializeToString()
    seen[item.table] += 1
