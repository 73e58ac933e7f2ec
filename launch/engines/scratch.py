"""A directory for the temporary files of a run, for as long as it lasts."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from typing import Any


class Scratch:
  """A new directory, which stays as it is until it is removed.

  As a context it is the path, and is removed at the end.

  What a node is started from again may lie there untouched for weeks.
  systemd-tmpfiles removes what is old, but enters no directory that is locked.
  """

  def __init__(self, prefix: str = 'murmuration-', where: str | None = None):
    """Makes it in `where`, by default in that of `tempfile`."""
    self.path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    self._held = os.open(self.path, os.O_RDONLY)
    with contextlib.suppress(OSError):  # the file system has no locks
      fcntl.flock(self._held, fcntl.LOCK_SH)

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
