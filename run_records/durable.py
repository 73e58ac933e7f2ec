"""Files that survive a kill and a power cut: whole, and in two generations.

    durable.write(path, save)        path is new, path.older what it was before
    durable.read(path, load)         of the newest of both that is whole

    DIRECTORY/
      learner-0.npz            the newest
      learner-0.npz.older      the one before
      learner-0.npz.broken     one that could not be read, put aside
      .written/                an empty file for each that was ever written
      .learner-0.npz.PID.TID   being written, or left by a killed writer

`.written/` tells a file that is lost from one that was never written. Checksums
are the format's: `load` raises where they do not fit.
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

_logger = logging.getLogger(__name__)
_PARTIAL = re.compile(r'\.(?P<name>.+)\.(?P<pid>\d+)\.\w+')
_T = TypeVar('_T')
# By this process: noted, and without leftovers of others.
_written: set[pathlib.Path] = set()
# Whose newest generation this process has put on disk.
_on_disk: set[pathlib.Path] = set()


class Broken(ValueError):
  """No generation of a file can be read; the message says why of each."""


def older(path: pathlib.Path) -> pathlib.Path:
  """Where the generation before the newest is."""
  return path.with_name(f'{path.name}.older')


def replace(
  path: pathlib.Path, save: Callable[[BinaryIO], Any], sync: bool = True
) -> None:
  """Writes a file so that a reader sees the old one or the new one.

  Args:
    path: of the file.
    save: writes its content.
    sync: whether it is on disk, not only in memory, when this returns.
  """
  # The thread's id too: nodes of local_mt share the process.
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
    sync: also puts it on disk, and keeps what it replaces as the older
      generation. Without, only the newest changes: it survives a kill, and a
      power cut leaves the older one.
  """
  if path not in _written:
    sweep(path.parent, path.name)
  if sync:
    _keep(path)
  _on_disk.discard(path)
  replace(path, save, sync)
  if sync:
    _on_disk.add(path)
  if path not in _written:
    # After the file: a name without a file would be a loss.
    _note(path)
    _written.add(path)


def read(
  path: pathlib.Path,
  load: Callable[[pathlib.Path], _T],
  *,
  repair: bool = False,
  say: Callable[[str], Any] = _logger.warning,
) -> _T | None:
  """The newest generation that can be read.

  Args:
    path: of the file.
    load: reads one generation; raises where it is not what was written.
    repair: puts a newest one that is broken aside, so that the next write
      keeps the whole one. For who writes the file.
    say: gets the sentence where it is not the newest.

  Returns:
    What `load` returns; None where the file was never written.

  Raises:
    Broken: it was written, and no generation can be read.
  """
  reasons = []
  for candidate in (path, older(path)):
    try:
      value = load(candidate)
    except FileNotFoundError:
      reasons.append(f'{candidate.name} is missing')
      continue
    except Exception as e:  # Bytes that changed fail in every way there is.
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
  if gone and not (path.parent / WRITTEN / path.name).exists():
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
  """Names that were ever written to a directory, sorted."""
  return sorted(path.name for path in (directory / WRITTEN).glob('*'))


def sweep(directory: pathlib.Path, name: str = '*') -> None:
  """Removes what writers that are dead left unfinished.

  Args:
    directory: where.
    name: of the file that they wrote; all files by default.
  """
  for left in directory.glob(f'.{name}.*'):
    match = _PARTIAL.fullmatch(left.name)
    if match is None or _lives(int(match['pid'])):
      continue
    if left.is_dir():
      shutil.rmtree(left, ignore_errors=True)
    else:
      left.unlink(missing_ok=True)


def _keep(path: pathlib.Path) -> None:
  """Makes what is newest now the older generation. It stays the newest too."""
  second = path.with_name(f'.{path.name}.{os.getpid()}.older')
  try:
    if path not in _on_disk:
      _sync(path)  # it may have been written without
    second.unlink(missing_ok=True)
    try:
      os.link(path, second)
    except FileNotFoundError:
      raise
    except OSError:  # a file system without links
      shutil.copyfile(path, second)
      _sync(second)
    os.replace(second, older(path))
  except FileNotFoundError:
    pass  # the first
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
  """Waits until a file, or the names in a directory, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _lives(pid: int) -> bool:
  """Whether there is such a process on this host; True if that is unclear."""
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except (OverflowError, PermissionError):
    return True
  return True


def _gist(error: Exception) -> str:
  return f'{type(error).__name__}: {error}'.partition('\n')[0][:120]
