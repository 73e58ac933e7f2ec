"""Starts replay servers from checkpoints, and saves checkpoints of them.

Reverb's own checkpointer deletes whatever else is in its directory, and lets a
checkpoint override the tables of the code. Here it writes to its own staging
directory. What it wrote is read back, moved in one step to a new generation
with a manifest, and restored with the tables of the code (restore.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any
import uuid

import reverb

from replay.checkpoints import files
from replay.checkpoints import restore
from replay.checkpoints.files import Manifest as Manifest

_LOCK = '.lock'
_INCOMING = '.incoming'
_KEPT = 2  # generations, the newest included
_LOOK_S = 1.0  # between two looks at how much is written
# Of what will not be read tomorrow either. Other faults may pass.
_DAMAGED = (errno.ENOENT, errno.ENOTDIR, errno.EIO)
_SETTLES_S = 0.3  # of a server's threads, after it was told to stop

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Opened:
  """A running server, and the manifest of the generation it was restored from.

  `restored` is None if the server started empty. It saves to `staging`.
  """

  server: reverb.Server
  restored: Manifest | None
  staging: pathlib.Path


def open_server(
  tables: Sequence[reverb.Table],
  port: int | None = None,
  directory: str | os.PathLike[str] | None = None,
) -> Opened:
  """Starts a server, from the newest valid checkpoint if there is one.

  Items, priorities and counts of samples come from the checkpoint; sizes,
  sampler, remover and rate limiter from `tables` (for the limiter's counters
  see `restore.rewrite`).

  Args:
    port: to listen at; None picks a free one.
    directory: holds only the checkpoints of this server; None restores nothing.

  Raises:
    restore.Refused: the checkpoint has other tables or signatures.
    files.WrongFormat: it was written by another version.
  """
  if directory is None:
    # Reverb creates this directory at each save; `save` removes it.
    staging = pathlib.Path(tempfile.gettempdir()) / f'replay-{uuid.uuid4().hex}'
    return Opened(start(tables, port, staging), None, staging)
  root = pathlib.Path(directory)
  root.mkdir(parents=True, exist_ok=True)
  with _locked(root):
    for leftover in (files.STAGING, _INCOMING, '.prepared'):
      # A killed save left it, and Reverb would restore from it; the last is of
      # a restore of earlier versions.
      shutil.rmtree(root / leftover, ignore_errors=True)
    found = newest(root)
    # Not in `root`: its disk may be full, and have what is to be restored.
    with tempfile.TemporaryDirectory(prefix='replay-') as temporary:
      prepared = pathlib.Path(temporary) / 'prepared'
      if found is not None:
        restore.prepare(found.path, tables, prepared)
      staging = root / files.STAGING
      server = start(tables, port, staging, prepared if found else None)
  return Opened(server, found, staging)


def newest(directory: str | os.PathLike[str]) -> Manifest | None:
  """The newest generation with unchanged files; skips broken ones, and warns.

  Raises:
    files.WrongFormat: one was written by another version.
    files.Broken: one cannot be read now, perhaps for want of a right.
  """
  root = pathlib.Path(directory)
  paths = files.generations(root)
  for path in paths:
    try:
      manifest = files.read_manifest(path)
      files.verify(manifest)
      return manifest
    except files.Broken as e:
      error = e.__cause__
      # To go on without it would let the next saves replace it.
      if isinstance(error, OSError) and error.errno not in _DAMAGED:
        raise
      _logger.warning('Generation %s is left out: %s', path.name, e)
  _logger.log(
    logging.WARNING if paths else logging.INFO,
    'No %scheckpoint in %s: replay starts empty.',
    'valid ' if paths else '',
    root,
  )
  return None


def save(
  opened: Opened,
  directory: str | os.PathLike[str],
  meta: Mapping[str, Any] | None = None,
  beat: Callable[[], None] = lambda: None,
) -> Manifest:
  """Saves all tables of a server as a new generation.

  Writers and readers wait only while the list of items is copied. The
  generation is written completely or not at all, even if the process is killed.
  `directory` is that of `open_server`; `meta` goes into the manifest, as JSON;
  `beat` is called again and again, as long as the save gets on.

  Raises:
    files.Broken: what Reverb wrote is incomplete. Nothing changes.
    OSError: it could not be written, as on a full disk. Nothing changes.
  """
  client = reverb.Client(f'127.0.0.1:{opened.server.port}')
  root = pathlib.Path(directory)
  root.mkdir(parents=True, exist_ok=True)
  incoming = root / _INCOMING
  with _locked(root):
    shutil.rmtree(incoming, ignore_errors=True)
    try:
      written = pathlib.Path(_checkpoint(client, opened.staging, beat))
      shutil.move(written, incoming)
      manifest = _describe(root, incoming, dict(meta or {}), beat)
      manifest.write(incoming)
      for file in incoming.iterdir():
        beat()
        _sync(file)
      os.rename(incoming, manifest.path)
      _sync(root)
    finally:
      # What a save has left that failed would fill the disk.
      for unfinished in (incoming, opened.staging):
        shutil.rmtree(unfinished, ignore_errors=True)
    for path in files.generations(root)[_KEPT:]:
      shutil.rmtree(path, ignore_errors=True)
  return manifest


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
  try:
    return sum(path.stat().st_size for path in directory.rglob('*'))
  except OSError:  # a file was there when it was looked for
    return 0


def _describe(
  root: pathlib.Path,
  incoming: pathlib.Path,
  meta: dict[str, Any],
  beat: Callable[[], None],
) -> Manifest:
  """Reads a checkpoint back; raises files.Broken if it is incomplete."""
  items = dict.fromkeys(restore.read_tables(incoming), 0)
  needed: set[int] = set()
  for item in restore.read_items(incoming):
    beat()
    if item.table not in items:
      raise files.Broken(f'An item is of table {item.table!r}: not there.')
    items[item.table] += 1
    for column in item.flat_trajectory.columns:
      needed.update(part.chunk_key for part in column.chunk_slices)
  there = set()
  for record in files.read_records(incoming / files.CHUNKS):
    beat()
    there.add(reverb.cc.schema_pb2.ChunkData.FromString(record).chunk_key)
  if needed - there:
    raise files.Broken(
      f'{len(needed - there)} of {len(needed)} chunks that items refer to were '
      'not written.'
    )
  generation = 1 + max(map(files.number, files.generations(root)), default=0)
  return Manifest(
    generation=generation,
    time=time.time(),
    items=items,
    sizes={f: (incoming / f).stat().st_size for f in files.REVERB_FILES},
    sha256={f: files.sha256(incoming / f, beat) for f in files.REVERB_FILES},
    meta=meta,
    path=root / f'generation_{generation:08d}',
  )


def _sync(path: pathlib.Path) -> None:
  """Waits until a file, or the entries of a directory, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def _locked(root: pathlib.Path):
  """Allows one save or restore at a time; the lock ends with the process."""
  with open(root / _LOCK, 'w') as file:
    with contextlib.suppress(OSError):  # the file system has no locks
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        _logger.warning(
          'Something else saves or restores %s: this waits for its end.', root
        )
        fcntl.flock(file, fcntl.LOCK_EX)
    yield
