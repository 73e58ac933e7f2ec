"""Files in two generations, which survive a kill and a power cut.

    durable.write(path, save)        the previous file becomes path.older
    durable.read(path, load)         the newest generation that is intact

    DIRECTORY/
      learner-0.npz            the newest generation
      learner-0.npz.older      the one before
      learner-0.npz.broken     one that could not be read, put aside
      learner-0.npz.unsaved    why the last write failed; goes with the next
      .written/                an empty file for each name ever written
      .learner-0.npz.PID.TID   being written, or left by a killed writer

`.written/` distinguishes a lost file from one that was never written. Checksums
are part of the file format: `load` raises if they do not match.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import logging
import os
import pathlib
import re
import shutil
import threading
from typing import Any, BinaryIO, TypeVar

WRITTEN = '.written'
UNSAVED = '.unsaved'

_logger = logging.getLogger(__name__)
_PARTIAL = re.compile(r'\.(?P<name>.+)\.(?P<pid>\d+)\.\w+')
_T = TypeVar('_T')
# Files that this process has noted in `.written/` and cleared of leftovers.
_written: set[pathlib.Path] = set()
# Files whose newest generation this process has synced to disk.
_on_disk: set[pathlib.Path] = set()


class Broken(ValueError):
  """No generation of a file can be read; the message has each reason."""


def older(path: pathlib.Path) -> pathlib.Path:
  """The path of the generation before the newest."""
  return path.with_name(f'{path.name}.older')


def unsaved(path: pathlib.Path) -> pathlib.Path:
  """The path of the mark that the newest generation could not be written."""
  return path.with_name(f'{path.name}{UNSAVED}')


def replace(
  path: pathlib.Path, save: Callable[[BinaryIO], Any], sync: bool = True
) -> None:
  """Writes a file atomically: a reader sees the old one or the new one.

  `save` writes its content. With `sync`, waits until it is on disk.
  """
  # With the thread's id, as nodes of local_mt share the process.
  partial = path.with_name(
    f'.{path.name}.{os.getpid()}.{threading.get_ident()}'
  )
  try:
    with open(partial, 'wb') as file:
      save(file)
      if sync:
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)
  if sync:
    _sync(path.parent)


def write(
  path: pathlib.Path, save: Callable[[BinaryIO], Any], sync: bool = True
) -> None:
  """Writes the newest generation of a file.

  Args:
    path: of the file; one process at a time writes it.
    save: writes its content.
    sync: whether to sync it to disk and keep the replaced file as the older
      generation. Otherwise the older one stays, and the new one survives a
      kill but maybe not a power cut.

  Raises:
    OSError: as from a full disk. `unsaved(path)`, where it can be made, says so
      until a write is done.
  """
  try:
    _write(path, save, sync)
  except OSError as e:
    # An empty file finds room on a disk whose blocks are full: whoever looks at
    # the run from outside learns of it, also if nobody reads this process's
    # log. Without inodes, over a quota, or read-only, it takes no mark either.
    with contextlib.suppress(OSError), open(unsaved(path), 'x') as file:
      file.write(e.strerror or str(e))
    raise
  unsaved(path).unlink(missing_ok=True)


def read(
  path: pathlib.Path,
  load: Callable[[pathlib.Path], _T],
  *,
  repair: bool = False,
  say: Callable[[str], Any] = _logger.warning,
) -> _T | None:
  """Reads the newest generation that is intact.

  Args:
    path: of the file.
    load: reads one generation; raises if its content is damaged.
    repair: whether to put a broken newest generation aside, so that the next
      write keeps the intact one. Only for the process that writes the file.
    say: called with a message if the result is not the newest generation.

  Returns:
    The result of `load`; None if the file was never written.

  Raises:
    Broken: the file was written, but no generation can be read.
  """
  reasons = []
  # Before it is looked for: its first generation may be written meanwhile.
  written = (path.parent / WRITTEN / path.name).exists()
  for candidate in (path, older(path)):
    try:
      value = load(candidate)
    except FileNotFoundError:
      reasons.append(f'{candidate.name} is missing')
      continue
    except Exception as e:  # damaged data may raise anything
      reasons.append(f'{candidate.name} is broken ({_gist(e)})')
      continue
    if reasons:
      say(
        f'{path.parent}: {reasons[0]}. Going on from {candidate.name}, the '
        'generation before it.'
      )
      if repair:
        _put_aside(path)
        os.replace(candidate, path)
        _sync(path.parent)
    return value
  gone = all(reason.endswith('is missing') for reason in reasons)
  if gone and not written:
    return None
  raise Broken(
    f'{path.parent} cannot be gone on from: {" and ".join(reasons)}, though '
    'this run has saved it. Put the file back from a copy, or start a new run.'
  )


def put_aside(path: pathlib.Path) -> None:
  """Puts all generations of a file aside, as if it had never been written."""
  for generation in (path, older(path)):
    _put_aside(generation)
  (path.parent / WRITTEN / path.name).unlink(missing_ok=True)
  _written.discard(path)
  _on_disk.discard(path)


def saved(directory: pathlib.Path) -> list[str]:
  """The sorted names of all files ever written to a directory."""
  return sorted(path.name for path in (directory / WRITTEN).glob('*'))


def sweep(directory: pathlib.Path, name: str = '*') -> None:
  """Removes files that dead writers left unfinished: of `name`, or all."""
  for left in directory.glob(f'.{name}.*'):
    match = _PARTIAL.fullmatch(left.name)
    if match is None or _lives(int(match['pid'])):
      continue
    if left.is_dir():
      shutil.rmtree(left, ignore_errors=True)
    else:
      left.unlink(missing_ok=True)


def _write(
  path: pathlib.Path, save: Callable[[BinaryIO], Any], sync: bool
) -> None:
  if path not in _written:
    sweep(path.parent, path.name)
  if sync:
    _keep(path)
  _on_disk.discard(path)
  replace(path, save, sync)
  if sync:
    _on_disk.add(path)
  if path not in _written:
    # After the file is written: a noted name without a file counts as lost.
    _note(path)
    _written.add(path)


def _keep(path: pathlib.Path) -> None:
  """Makes the newest generation the older one too, by a link or a copy."""
  second = path.with_name(f'.{path.name}.{os.getpid()}.older')
  try:
    if path not in _on_disk:
      _sync(path)  # it may have been written without `sync`
    second.unlink(missing_ok=True)
    try:
      os.link(path, second)
    except FileNotFoundError:
      raise
    except OSError:  # the file system has no hard links
      shutil.copyfile(path, second)
      _sync(second)
    os.replace(second, older(path))
  except FileNotFoundError:
    pass  # there is no generation yet
  finally:
    second.unlink(missing_ok=True)


def _put_aside(path: pathlib.Path) -> None:
  with contextlib.suppress(FileNotFoundError):
    os.replace(path, path.with_name(f'{path.name}.broken'))


def _note(path: pathlib.Path) -> None:
  directory = path.parent / WRITTEN
  directory.mkdir(exist_ok=True)
  (directory / path.name).touch()
  _sync(directory)


def _sync(path: pathlib.Path) -> None:
  """Waits until a file, or a directory's entries, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _lives(pid: int) -> bool:
  """Whether the process exists on this host; True if that is unclear."""
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except (OverflowError, PermissionError):
    return True
  return True


def _gist(error: Exception) -> str:
  return f'{type(error).__name__}: {error}'.partition('\n')[0][:120]
