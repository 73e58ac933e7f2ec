"""Checkpoint files of a run: their names, and writing that survives a kill."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

# In RUN/checkpoints/.
STAR = 'star.npz'  # theta [D], version, r_star, explorer
AGENTS = 'agents.npz'  # theta [P, D], steps
BEST = 'best.npz'  # theta [D], return_mean, steps, confirmed
STAR_SERVER = 'star_server.npz'  # all that it needs to go on


def directory(run_dir: str | os.PathLike[str]) -> pathlib.Path:
  """RUN/checkpoints, made if it is not there."""
  path = pathlib.Path(run_dir) / 'checkpoints'
  path.mkdir(parents=True, exist_ok=True)
  return path


def write(path: pathlib.Path, **arrays: Any) -> None:
  """Writes an .npz so that a reader sees the old file or the new one.

  What a writer of this file left unfinished when it was killed is removed.
  """
  for left in path.parent.glob(f'.{path.name}.*'):
    if not _is_alive(left.suffix[1:]):
      left.unlink(missing_ok=True)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  with open(temporary, 'wb') as file:
    np.savez(file, **arrays)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def _is_alive(pid: str) -> bool:
  """Whether there is such a process on this host; True if that is unclear."""
  try:
    os.kill(int(pid), 0)
  except ProcessLookupError:
    return False
  except (ValueError, OverflowError, PermissionError):
    return True  # not ours
  return True
