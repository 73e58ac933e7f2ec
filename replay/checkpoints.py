"""Checkpoints of replay servers: how they are saved and restored.

    DIRECTORY/
      staging/                where Reverb writes; empty between two saves
      generation_00000012/
        tables.tfrecord  items.tfrecord  chunks.tfrecord  DONE      Reverb's
        manifest.json         when it was saved, and what the caller adds

Reverb's own checkpointer deletes whatever else is in its directory, and takes
sampler, remover, sizes and rate limiter of a restored table from the
checkpoint. So it writes to a directory of its own, which becomes a generation
in one step; and it restores a copy, in which the description of each table is
rewritten from the tables of the code. Items and data stay the same.
"""

from __future__ import annotations

import collections
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from concurrent import futures
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil
import tempfile
import time
from typing import Any
import uuid

import reverb
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
import tensorflow as tf
from tensorflow.python.saved_model import nested_structure_coder

from murmuration.replay import stderr
from murmuration.replay import table_checks

MANIFEST = 'manifest.json'
STAGING = 'staging'
TABLES = 'tables.tfrecord'
ITEMS = 'items.tfrecord'
CHUNKS = 'chunks.tfrecord'
DONE = 'DONE'

_RECORDS = (TABLES, ITEMS, CHUNKS)
_GENERATION = re.compile(r'generation_\d{8,}')
_KEPT = 2  # generations, the newest included
_LOOK_S = 1.0  # between two looks at how much is written
_SETTLES_S = 0.3  # of a server's threads, after it was told to stop

_logger = logging.getLogger(__name__)


class Broken(OSError):
  """A file of a checkpoint is missing, cut or changed."""


class Refused(ValueError):
  """The tables of the code cannot hold what is in the checkpoint."""


@dataclasses.dataclass(frozen=True)
class Saved:
  """A checkpoint.

  Attributes:
    path: its directory.
    items: their number, in all tables.
    time: when it was saved, seconds since the epoch.
    meta: from the caller of `save`, such as {'learner_steps': 1200}.
  """

  path: pathlib.Path
  items: int
  time: float
  meta: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Opened:
  """A running server, and the checkpoint that it was restored from.

  `restored` is None if the server started empty. It saves to `staging`.
  """

  server: reverb.Server
  restored: Saved | None
  staging: pathlib.Path


# Servers.


def open_server(
  tables: Sequence[reverb.Table],
  port: int | None = None,
  directory: str | os.PathLike[str] | None = None,
) -> Opened:
  """Starts a server, from the newest whole generation if there is one.

  Items, priorities and counts of samples come from the checkpoint; sizes,
  sampler, remover and rate limiter from `tables` (for the limiter's counters
  see `rewrite`).

  Args:
    port: to listen at; None picks a free one.
    directory: holds only the checkpoints of this server; None restores nothing.

  Raises:
    Refused: the checkpoint has other tables or signatures.
    OSError: a checkpoint cannot be read now, perhaps for want of a right.
  """
  if directory is None:
    # Reverb creates this directory at each save; `save` removes it.
    staging = pathlib.Path(tempfile.gettempdir()) / f'replay-{uuid.uuid4().hex}'
    return Opened(start(tables, port, staging), None, staging)
  root = pathlib.Path(directory)
  root.mkdir(parents=True, exist_ok=True)
  staging = root / STAGING
  # A killed save left it, and Reverb would restore from it.
  shutil.rmtree(staging, ignore_errors=True)
  paths = generations(root)
  for path in paths:
    # Not in `root`: its disk may be full, and have what is to be restored.
    with tempfile.TemporaryDirectory(prefix='replay-') as temporary:
      prepared = pathlib.Path(temporary) / 'prepared'
      try:
        saved = read(path)
        prepare(path, tables, prepared)
        return Opened(start(tables, port, staging, prepared), saved, staging)
      except (Broken, RuntimeError) as e:  # Reverb's, of a damaged record
        _logger.warning('Generation %s is left out: %s', path.name, e)
  level = logging.WARNING if paths else logging.INFO
  _logger.log(level, 'Nothing to restore in %s: replay starts empty.', root)
  return Opened(start(tables, port, staging), None, staging)


def start(
  tables: Sequence[reverb.Table],
  port: int | None,
  staging: pathlib.Path,
  prepared: pathlib.Path | None = None,
) -> reverb.Server:
  """A server that saves to `staging` and is restored from `prepared`."""
  checkpointer = reverb.checkpointers.DefaultCheckpointer(
    path=str(staging),
    # Loaded if the staging directory is empty.
    fallback_checkpoint_path=str(prepared) if prepared else None,
  )
  return reverb.Server(list(tables), port, checkpointer)


def stop(servers: Sequence[reverb.Server]) -> None:
  """Stops servers, after which they can be deleted.

  Deleted at once, servers of tables of 100 items that were being written hung
  in 2 of 2 processes within 60 trials, and the whole process with them, as the
  destructor holds the GIL. By Reverb's source it ends a table's extension
  worker, then waits for the table's own worker, which may wait for that one.
  """
  for server in servers:
    server.stop()
  time.sleep(_SETTLES_S)


# Saving.


def save(
  opened: Opened,
  directory: str | os.PathLike[str],
  meta: Mapping[str, Any] | None = None,
  beat: Callable[[], None] = lambda: None,
) -> Saved:
  """Saves all tables of a server as a new generation.

  Writers and readers wait only while the list of items is copied. The
  generation is written completely or not at all, even if the process is killed.
  `directory` is that of `open_server`; `meta` is kept with it, as JSON; `beat`
  is called again and again, as long as the save gets on.

  Raises:
    OSError: it could not be written, as on a full disk. Nothing changes.
  """
  client = reverb.Client(f'127.0.0.1:{opened.server.port}')
  root = pathlib.Path(directory)
  root.mkdir(parents=True, exist_ok=True)
  try:
    written = pathlib.Path(_checkpoint(client, opened.staging, beat))
    sizes = {name: (written / name).stat().st_size for name in _RECORDS}
    values = {'time': time.time(), 'meta': dict(meta or {}), 'sizes': sizes}
    (written / MANIFEST).write_text(json.dumps(values), encoding='utf-8')
    saved = read(written)
    for file in written.iterdir():
      beat()
      _sync(file)
    number = max(map(_number, generations(root)), default=0) + 1
    saved = dataclasses.replace(saved, path=root / f'generation_{number:08d}')
    os.rename(written, saved.path)
    _sync(root)
  finally:
    # What a save has left that failed would fill the disk.
    shutil.rmtree(opened.staging, ignore_errors=True)
  for path in generations(root)[_KEPT:]:
    shutil.rmtree(path, ignore_errors=True)
  return saved


def _checkpoint(
  client: reverb.Client, staging: pathlib.Path, beat: Callable[[], None]
) -> str:
  """Lets Reverb write to `staging`; beats while that grows. Returns the path.

  Reverb returns when all is written, which may take it many minutes.
  """
  with futures.ThreadPoolExecutor(1) as pool:
    writing, before = pool.submit(client.checkpoint), 0
    while not futures.wait([writing], _LOOK_S).done:
      size = _bytes_in(staging)
      if size > before:
        beat()
      before = size
    try:
      return writing.result()
    except Exception as e:  # of a full disk it is an IndexError
      raise OSError(f'Reverb could not write its checkpoint: {e}') from e


def _bytes_in(directory: pathlib.Path) -> int:
  with contextlib.suppress(OSError):  # a file is gone
    return sum(path.stat().st_size for path in directory.rglob('*'))
  return 0


def _sync(path: pathlib.Path) -> None:
  """Waits until a file, or the entries of a directory, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


# Finding and reading.


def generations(directory: pathlib.Path) -> list[pathlib.Path]:
  """The generations in a checkpoint directory, newest first."""
  found = (
    path
    for path in directory.glob('generation_*')
    if _GENERATION.fullmatch(path.name) and path.is_dir()
  )
  return sorted(found, key=_number, reverse=True)


def _number(path: pathlib.Path) -> int:
  return int(path.name.removeprefix('generation_'))


def read(path: pathlib.Path) -> Saved:
  """A generation.

  Raises:
    Broken: it is not whole.
    OSError: it cannot be read now. To go on without it would let the next saves
      replace it.
  """
  # A checkpoint of Reverb's own has no manifest.
  values: dict[str, Any] = {}
  try:
    saved_at = (path / DONE).stat().st_mtime
    if (path / MANIFEST).exists():
      values = dict(json.loads((path / MANIFEST).read_text(encoding='utf-8')))
    for name in _RECORDS:
      with (path / name).open('rb') as file:
        size = file.seek(0, os.SEEK_END)
      if size != values.get('sizes', {}).get(name, size):
        raise Broken(f'{path / name} is cut.')
  except (FileNotFoundError, ValueError, TypeError) as e:
    raise Broken(f'{path} is not whole: {e}') from e
  items = sum(1 for _ in _records(path / ITEMS))
  return Saved(
    path, items, values.get('time', saved_at), values.get('meta', {})
  )


def _records(path: pathlib.Path) -> Iterator[bytes]:
  """Yields the records of a file; raises as `read` does."""
  try:
    yield from tf.data.TFRecordDataset(str(path), 'ZLIB').as_numpy_iterator()
  except (tf.errors.DataLossError, tf.errors.NotFoundError) as e:
    raise Broken(f'{path} is missing or damaged.') from e
  except tf.errors.OpError as e:
    raise OSError(f'{path} cannot be read: {e.message}') from e


def _write_records(path: pathlib.Path, messages: Iterable[Any]) -> None:
  with tf.io.TFRecordWriter(str(path), 'ZLIB') as writer:
    for message in messages:
      writer.write(message.SerializeToString())


def read_tables(
  source: pathlib.Path,
) -> dict[str, checkpoint_pb2.PriorityTableCheckpoint]:
  """Descriptions of the tables of a checkpoint, by name."""
  parse = checkpoint_pb2.PriorityTableCheckpoint.FromString
  tables = map(parse, _records(source / TABLES))
  return {table.table_name: table for table in tables}


def read_items(source: pathlib.Path) -> Iterator[schema_pb2.PrioritizedItem]:
  """Yields the items of a checkpoint, the oldest of each table first.

  A million items in memory at once would take a gigabyte.
  """
  return map(schema_pb2.PrioritizedItem.FromString, _records(source / ITEMS))


def read_data(
  source: pathlib.Path, table: str, keys: Collection[int]
) -> Iterator[tuple[int, list[Any]]]:
  """Yields key and columns of the items of a table that have these keys.

  A temporary server restores them: only Reverb knows how to read their data.
  """
  saved = read_tables(source)[table]
  # A queue gives each item once.
  queue = reverb.Table.queue(
    table, len(keys), signature=decode_signature(saved)
  )

  def items():
    for item in read_items(source):
      if item.table == table and item.key in keys:
        item.times_sampled = 0
        yield item

  with tempfile.TemporaryDirectory(prefix='replay-') as temporary:
    copy = pathlib.Path(temporary) / 'copy'
    _write(source, copy, [rewrite(saved, _info(queue), len(keys))], items())
    # Reverb's log messages at its start would appear before the answer.
    with stderr.muted():
      server = start([queue], None, copy.with_name('none'), copy)
      try:
        client = reverb.Client(f'127.0.0.1:{server.port}')
        for one in client.sample(table, len(keys), emit_timesteps=False):
          yield one.info.key, one.data
      finally:
        stop([server])


# Restoring with the settings of the code.


def prepare(
  source: pathlib.Path, tables: Sequence[reverb.Table], target: pathlib.Path
) -> None:
  """Writes a copy of a checkpoint that restores `tables` as they are.

  `source` is a directory of Reverb's files and is only read. `target` is made,
  on the same file system or another; its larger files are links to `source`.

  Raises:
    Refused: the tables or their signatures differ.
  """
  wanted = {table.name: _info(table) for table in tables}
  saved = read_tables(source)
  theirs, ours = (
    {name: decode_signature(table) for name, table in sorted(each.items())}
    for each in (saved, wanted)
  )
  if theirs != ours:
    raise Refused(
      f'The checkpoint {source} holds {theirs}, but the server is made for '
      f'{ours}. Restore it with the environment, layout and tables that wrote '
      'it, or move it away to start empty.'
    )
  sizes = collections.Counter(item.table for item in read_items(source))
  gone = collections.Counter(
    {name: max(0, sizes[name] - info.max_size) for name, info in wanted.items()}
  )
  items = None
  if gone.total():
    _logger.warning(
      '%d items of %s are left out, the oldest: the tables are smaller now.',
      gone.total(),
      source,
    )
    items = _newest_items(source, gone)
  rewritten = [
    rewrite(saved[name], info, sizes[name] - gone[name])
    for name, info in wanted.items()
  ]
  _write(source, target, rewritten, items)


def _newest_items(
  source: pathlib.Path, gone: Mapping[str, int]
) -> Iterator[schema_pb2.PrioritizedItem]:
  """The items of a checkpoint without the gone[name] oldest of each table."""
  seen: collections.Counter[str] = collections.Counter()
  for item in read_items(source):
    seen[item.table] += 1
    if seen[item.table] > gone[item.table]:
      yield item


def _write(
  source: pathlib.Path,
  target: pathlib.Path,
  tables: Iterable[checkpoint_pb2.PriorityTableCheckpoint],
  items: Iterable[schema_pb2.PrioritizedItem] | None,
) -> None:
  """Writes a copy of `source` with these tables, and these items if given.

  Files that stay as they are become links.
  """
  target.mkdir(parents=True)
  _write_records(target / TABLES, tables)
  if items is None:
    (target / ITEMS).symlink_to((source / ITEMS).resolve())
  else:
    _write_records(target / ITEMS, items)
  (target / CHUNKS).symlink_to((source / CHUNKS).resolve())
  (target / DONE).touch()


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
  limiter = table_checks.limiter_of(new)
  if not limiter.unlimited:
    ratio = new.samples_per_insert
    if limiter.is_queue:
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


def decode_signature(message: Any) -> Any:
  """The (nested) tf.TensorSpec of a table or its checkpoint, or None."""
  if not message.HasField('signature'):
    return None
  return nested_structure_coder.decode_proto(message.signature)
