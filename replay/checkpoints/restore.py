"""Makes Reverb restore a checkpoint with the settings of the code.

Reverb takes sampler, remover, sizes and rate limiter of a restored table from
the checkpoint. It is therefore given a copy, in which the description of each
table is rewritten from the tables of the code; items and data stay the same.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import logging
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
  """The tables of the code cannot hold what is in the checkpoint."""


def prepare(
  source: pathlib.Path, tables: Sequence[reverb.Table], target: pathlib.Path
) -> None:
  """Writes a copy of a checkpoint that restores `tables` as they are.

  `source` is a directory of Reverb's files and is only read. `target` is made,
  on the same file system or another; its larger files are links to `source`.

  Raises:
    Refused: the tables or their signatures differ.
    files.Broken: a file cannot be read.
  """
  wanted = {table.name: _info(table) for table in tables}
  saved = read_tables(source)
  _check(source, saved, wanted)
  sizes = collections.Counter(item.table for item in read_items(source))
  gone = {
    name: max(0, sizes[name] - info.max_size) for name, info in wanted.items()
  }
  items = None
  if any(gone.values()):
    _logger.warning(
      '%d items of %s are left out, the oldest: the tables are smaller now.',
      sum(gone.values()),
      source,
    )
    items = _newest(source, gone)
  rewritten = [
    rewrite(saved[name], info, sizes[name] - gone[name])
    for name, info in wanted.items()
  ]
  _write(source, target, rewritten, items, _point)


def excerpt(
  source: pathlib.Path,
  table: reverb.Table,
  items: Sequence[schema_pb2.PrioritizedItem],
  target: pathlib.Path,
) -> None:
  """Writes a copy of a checkpoint that restores `table` with some items only.

  The items, of this table, are restored as never sampled. `source` is only
  read, and may be removed before `target` is restored.
  """
  found = rewrite(read_tables(source)[table.name], _info(table), len(items))
  _write(source, target, [found], map(_fresh, items), _link)


def _fresh(item: schema_pb2.PrioritizedItem) -> schema_pb2.PrioritizedItem:
  fresh = schema_pb2.PrioritizedItem()
  fresh.CopyFrom(item)
  fresh.times_sampled = 0
  return fresh


def _write(
  source: pathlib.Path,
  target: pathlib.Path,
  tables: Iterable[checkpoint_pb2.PriorityTableCheckpoint],
  items: Iterable[schema_pb2.PrioritizedItem] | None,
  place: Callable[[pathlib.Path, pathlib.Path], None],
) -> None:
  """Writes a copy of `source` with these tables, and these items if given.

  Files that stay as they are it leaves to `place`.
  """
  target.mkdir(parents=True)
  for name, messages in ((files.TABLES, tables), (files.ITEMS, items)):
    if messages is None:
      place(source / name, target / name)
    else:
      records = (message.SerializeToString() for message in messages)
      files.write_records(target / name, records)
  place(source / files.CHUNKS, target / files.CHUNKS)
  (target / files.DONE).touch()


def rewrite(
  saved: checkpoint_pb2.PriorityTableCheckpoint,
  wanted: schema_pb2.TableInfo,
  num_items: int,
) -> checkpoint_pb2.PriorityTableCheckpoint:
  """The description of a table with items as saved and settings as wanted.

  The limiter's counters decide which side may proceed. Inserts continue from
  the checkpoint. Samples are set so that neither side is blocked at once:
  inserts * samples_per_insert - samples is in the middle of [min_diff,
  max_diff] when min_size items are there. That changes the sample count by at
  most half of that range. A queue counts the items that wait in it, so its
  value is exact; a limiter without a ratio keeps its count.
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
    # Not negative: the middle of a limiter of ours is min_size * ratio.
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
  """Settings of a table, which need not have a server."""
  return schema_pb2.TableInfo.FromString(table.internal_table.info())


def unlimited(limiter: schema_pb2.RateLimiterInfo) -> bool:
  """Whether a limiter holds no ratio, only a minimum size."""
  # MinSize sets these to the largest and smallest float.
  return limiter.max_diff - limiter.min_diff > 1e300


def is_queue(limiter: schema_pb2.RateLimiterInfo) -> bool:
  """Whether a limiter is the one of Reverb's queue or stack."""
  return (
    limiter.samples_per_insert == 1
    and limiter.min_size_to_sample == 1
    and limiter.min_diff == 0
  )


def read_tables(
  source: pathlib.Path,
) -> dict[str, checkpoint_pb2.PriorityTableCheckpoint]:
  """Descriptions of the tables of a checkpoint, by name."""
  tables = map(
    checkpoint_pb2.PriorityTableCheckpoint.FromString,
    files.read_records(source / files.TABLES),
  )
  return {table.table_name: table for table in tables}


def read_items(source: pathlib.Path) -> Iterator[schema_pb2.PrioritizedItem]:
  """Yields the items of a checkpoint, the oldest of each table first.

  A million items in memory at once would take a gigabyte.
  """
  for record in files.read_records(source / files.ITEMS):
    yield schema_pb2.PrioritizedItem.FromString(record)


def _link(source: pathlib.Path, target: pathlib.Path) -> None:
  """Hard-links a file, or copies it where links are not possible."""
  try:
    os.link(source, target)
  except OSError:
    shutil.copyfile(source, target)


def _point(source: pathlib.Path, target: pathlib.Path) -> None:
  """Links to a file that is there as long as it is needed; takes no room."""
  target.symlink_to(source.resolve())


def _check(source: pathlib.Path, saved: Mapping, wanted: Mapping) -> None:
  theirs, ours = (
    {name: decode_signature(table) for name, table in sorted(tables.items())}
    for tables in (saved, wanted)
  )
  if theirs != ours:
    raise Refused(
      f'The checkpoint {source} holds {theirs}, but the server is made for '
      f'{ours}. Restore it with the environment, layout and tables that wrote '
      'it, or move it away to start empty.'
    )


def decode_signature(message) -> object:
  """The (nested) tf.TensorSpec of a table or its checkpoint, or None."""
  if not message.HasField('signature'):
    return None
  return nested_structure_coder.decode_proto(message.signature)


def _newest(
  source: pathlib.Path, gone: Mapping[str, int]
) -> Iterator[schema_pb2.PrioritizedItem]:
  """The items of a checkpoint without the gone[name] oldest of each table."""
  seen: collections.Counter[str] = collections.Counter()
  for item in read_items(source):
    seen[item.table] += 1
    if seen[item.table] > gone[item.table]:
      yield item
