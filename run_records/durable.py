"""Files that survive a kill and a power cut.

durable.replace(path, save)      a reader sees the old file or the new one
durable.write(path, save)        so, and the old one becomes path.older
durable.read(path, load)         the newest generation that is intact

learner-0.npz            the newest generation
learner-0.npz.older      the one before
learner-0.npz.unsaved    why the last write failed; the next one removes it
.learner-0.npz.PID.TID   being written, or left by a killed writer
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import logging
import os
import pathlib
import re
import threading
from typing import Any, BinaryIO, TypeVar

UNSAVED = '.unsaved'

_logger = logging.getLogger(__name__)
_PARTIAL = re.compile(r'\.(?P<name>.+)\.(?P<pid>\d+)\.\w+')
_T = TypeVar('_T')


class Broken(ValueError):
  """No generation of a file can be read; the message has each reason."""


def older(path: pathlib.Path) -> pathlib.Path:
  """The path of the generation before the newest."""
  return path.with_name(f'{path.name}.older')


def unsaved(path: pathlib.Path) -> pathlib.Path:
  """The path of the mark that the last write failed."""
  return path.with_name(f'{path.name}{UNSAVED}')


def replace(
  path: pathlib.Path, save: Callable[[BinaryIO], Any], sync: bool = True
) -> None:
  """Writes a file atomically.

  Args:
    path: of the file.
    save: writes its content.
    sync: whether to wait until it is on disk.
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
  """Writes the newest generation of a file; one process at a time writes it.

  Without `sync` the new file survives a kill but maybe not a power cut, and the
  older generation stays as it is.

  Raises:
    OSError: as from a full disk. `unsaved(path)`, where it can be made, says so
      until a write succeeds.
  """
  try:
    sweep(path.parent, path.name)
    if sync:
      _keep(path)
    replace(path, save, sync)
  except OSError as e:
    # A disk whose blocks are full mostly has room for an empty file.
    with contextlib.suppress(OSError), open(unsaved(path), 'w') as file:
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
    repair: whether to make the older generation the newest one if that is
      damaged. Only for the process that writes the file.
    say: called with a message if the result is not the newest generation.

  Returns:
    The result of `load`; None if there is no file.

  Raises:
    Broken: there is a file, but no generation can be read.
  """
  reasons = []
  for candidate in (path, older(path)):
    try:
      value = load(candidate)
    except FileNotFoundError:
      reasons.append(f'{candidate.name} is missing')
      continue
    except Exception as e:  # damaged data may raise anything
      gist = f'{type(e).__name__}: {e}'.partition('\n')[0][:120]
      reasons.append(f'{candidate.name} is broken ({gist})')
      continue
    if reasons:
      say(
        f'{path.parent}: {reasons[0]}. Going on from {candidate.name}, the '
        'generation before it.'
      )
      if repair:
        os.replace(candidate, path)
        _sync(path.parent)
    return value
  if all(reason.endswith('is missing') for reason in reasons):
    return None
  raise Broken(
    f'{path.parent} cannot be gone on from: {" and ".join(reasons)}. Put the '
    'file back from a copy, or start a new run.'
  )


def sweep(directory: pathlib.Path, name: str = '*') -> None:
  """Removes files that dead writers left unfinished: of `name`, or all."""
  for left in directory.glob(f'.{name}.*'):
    match = _PARTIAL.fullmatch(left.name)
    if match is not None and not _lives(int(match['pid'])):
      left.unlink(missing_ok=True)


def _keep(path: pathlib.Path) -> None:
  """Makes the newest generation the older one too, by a link."""
  second = path.with_name(f'.{path.name}.{os.getpid()}.older')
  # There may be no generation yet, or no links on this file system.
  with contextlib.suppress(OSError):
    _sync(path)  # it may have been written without `sync`
    second.unlink(missing_ok=True)
    os.link(path, second)
    os.replace(second, older(path))


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
