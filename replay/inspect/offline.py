"""A look at the items of a checkpoint: nothing is at stake, nothing is touched.

Priorities, ages and counts are in the files. What is in the items is decoded by
a private server on a free port, which has a copy of just these items.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import tempfile

import numpy as np
import reverb

from replay.checkpoints import files
from replay.checkpoints import restore
from replay.inspect import items as inspect_items
from replay.inspect import read as reading


def look(
  shard: reading.Shard, table: reading.Table, count: int, data: bool = True
) -> inspect_items.Look:
  """Draws up to `count` items of a checkpoint, each as likely and once.

  Args:
    shard: the checkpoint.
    table: of it.
    count: items.
    data: whether to decode them; else there are priorities and ages only.

  Raises:
    NotLooked: the table is empty, or the format of its items another.
  """
  source = pathlib.Path(shard.source)
  if not table.size:
    raise inspect_items.NotLooked(f'Table {table.name!r} is empty.')
  order = np.random.default_rng(0).permutation(table.size)
  chosen = set(order[:count].tolist())
  own = (i for i in restore.read_items(source) if i.table == table.name)
  picked = [item for index, item in enumerate(own) if index in chosen]
  decoded = _decode_offline(source, table, picked) if data else {}
  saved = (
    shard.manifest.time
    if shard.manifest
    else (source / files.DONE).stat().st_mtime
  )
  items = [
    inspect_items.Item(
      item.key,
      item.priority,
      item.times_sampled,
      decoded.get(item.key, {}),
      max(0.0, saved - item.inserted_at.ToNanoseconds() / 1e9),
    )
    for item in picked
  ]
  weights = np.full(len(items), 1 / len(items))
  return inspect_items.Look(items, weights, False, saved, shard.learner_steps)


def _decode_offline(
  source: pathlib.Path, table: reading.Table, picked: list
) -> dict[int, dict[str, np.ndarray]]:
  """Item key to fields, by a private server with a copy of these items."""
  needed = {
    part.chunk_key
    for item in picked
    for column in item.flat_trajectory.columns
    for part in column.chunk_slices
  }
  # Each item once, in order: a queue.
  queue = reverb.Table.queue(table.name, len(picked), signature=table.signature)
  with tempfile.TemporaryDirectory(prefix='replay-inspect-') as temporary:
    copy = pathlib.Path(temporary) / 'copy'
    copy.mkdir()
    saved = restore.read_tables(source)[table.name]
    wanted = restore.schema_pb2.TableInfo.FromString(
      queue.internal_table.info()
    )
    rewritten = restore.rewrite(saved, wanted, len(picked))
    files.write_records(copy / files.TABLES, [rewritten.SerializeToString()])
    fresh = []
    for item in picked:
      fresh.append(restore.schema_pb2.PrioritizedItem())
      fresh[-1].CopyFrom(item)
      fresh[-1].times_sampled = 0
    files.write_records(
      copy / files.ITEMS, (item.SerializeToString() for item in fresh)
    )
    files.write_records(
      copy / files.CHUNKS,
      (
        record
        for record in files.read_records(source / files.CHUNKS)
        if restore.schema_pb2.ChunkData.FromString(record).chunk_key in needed
      ),
    )
    (copy / files.DONE).touch()
    checkpointer = reverb.checkpointers.DefaultCheckpointer(
      path=str(pathlib.Path(temporary) / 'none'),
      fallback_checkpoint_path=str(copy),
    )
    with _quiet():
      server = reverb.Server([queue], None, checkpointer)
      try:
        samples = server.localhost_client().sample(
          table.name, len(picked), emit_timesteps=False
        )
        return {
          one.info.key: inspect_items.decode(table.signature, one.data)
          for one in samples
        }
      finally:
        server.stop()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps the notes of Reverb's C++ away from the user."""
  kept = os.dup(2)
  nothing = os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nothing, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nothing)
