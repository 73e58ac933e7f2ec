"""A directory for the temporary files of a run, for as long as it lasts."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import socket
import tempfile
from typing import Any
import zlib


class Scratch:
  """A new directory, which stays as it is until it is removed.

  As a context it is the path, and is removed at the end.

  What a node is started from again may lie there untouched for weeks.
  systemd-tmpfiles removes what is old, but enters no directory that is locked.
  Nor do runs that begin: they remove those of which nobody is left.
  """

  def __init__(self, prefix: str = 'murmuration-', where: str | None = None):
    """Makes it in `where`, by default in that of `tempfile`."""
    top = pathlib.Path(where or tempfile.gettempdir())
    # Locks may be of one host only, on a file system that several mount.
    prefix += f'{zlib.crc32(socket.gethostname().encode()) & 0xFFFF:04x}-'
    _sweep(top, prefix)
    self._held = -1
    while self._held < 0:
      self.path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=top))
      self._held = _hold(self.path)

  def __enter__(self) -> pathlib.Path:
    return self.path

  def __exit__(self, *unused: Any) -> None:
    self.remove()

  def remove(self) -> None:
    """Removes it with all that is in it; may be called again."""
    shutil.rmtree(self.path, ignore_errors=True)
    if self._held >= 0:
      os.close(self._held)
      self._held = -1


def _hold(path: pathlib.Path) -> int:
  """Locks a new directory; -1 if another run swept it away before that."""
  try:
    held = os.open(path, os.O_RDONLY)
  except FileNotFoundError:
    return -1
  with contextlib.suppress(OSError):  # the file system has no locks
    fcntl.flock(held, fcntl.LOCK_SH)
  if path.exists():
    return held
  os.close(held)
  return -1


def _sweep(top: pathlib.Path, prefix: str) -> None:
  """Removes what runs left that were killed with all their processes."""
  with contextlib.suppress(OSError):
    for path in top.glob(f'{prefix}*'):
      with contextlib.suppress(OSError):
        _remove_if_left(path)


def _remove_if_left(path: pathlib.Path) -> None:
  held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
  try:
    if os.fstat(held).st_uid == os.geteuid():
      fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(path, ignore_errors=True)
  finally:
    os.close(held)
