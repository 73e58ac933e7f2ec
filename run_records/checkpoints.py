"""Checkpoint files of a run: their names, and what they hold.

Arrays as .npz, whose zip has a checksum of each, and state as JSON; both in two
generations (durable.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import fnmatch
import json
import logging
import os
import pathlib
from typing import Any
import zipfile

import numpy as np

from murmuration.run_records import durable
from murmuration.run_records import jsonable

# In RUN/checkpoints/.
STAR = 'star.npz'  # theta [D], version, r_star, explorer
AGENTS = 'agents.npz'  # theta [P, D], steps
BEST = 'best.npz'  # theta [D], return_mean, steps, confirmed
STAR_SERVER = 'star_server.npz'  # all that it needs to go on
RING = 'ring-{}.npz'  # replay in a worker's own process
# In RUN/metrics/: totals and newest rows, see launch/services/counter.py.
COUNTER = 'counter.json'

# What murmuration/playing.py plays, best first; nothing goes on from these.
PLAYED = (STAR, BEST, AGENTS)
_CHECKSUM = 'crc32'  # that earlier versions wrote; nobody reads it
_logger = logging.getLogger(__name__)


def directory(run_dir: str | os.PathLike[str]) -> pathlib.Path:
  """RUN/checkpoints, made if it is not there."""
  path = pathlib.Path(run_dir) / 'checkpoints'
  path.mkdir(parents=True, exist_ok=True)
  return path


def needed(name: str) -> bool:
  """Whether a run cannot go on without a file of this name."""
  return name not in PLAYED and not fnmatch.fnmatch(name, RING.format('*'))


def write(path: pathlib.Path, *, sync: bool = True, **arrays: Any) -> None:
  """Writes a new generation of an .npz; see `durable.write`."""
  durable.write(path, lambda file: np.savez(file, **arrays), sync)


def read(
  path: pathlib.Path,
  *,
  repair: bool = False,
  say: Callable[[str], Any] = _logger.warning,
) -> dict[str, np.ndarray] | None:
  """The newest generation of an .npz that is whole; see `durable.read`.

  Of a file that a run can go on without, None also if none is whole.
  """
  try:
    return durable.read(path, _load_arrays, repair=repair, say=say)
  except durable.Broken as e:
    if needed(path.name):
      raise
    say(f'{path} is left out, and will be written anew: {e}')
    return None


def write_state(
  path: pathlib.Path, state: Mapping[str, Any], sync: bool = True
) -> None:
  """Writes a new generation of a JSON file; see `durable.write`."""
  text = json.dumps(jsonable.encode(state), indent=2)
  durable.write(path, lambda file: file.write(f'{text}\n'.encode()), sync)


def read_state(path: pathlib.Path, **options: Any) -> dict[str, Any] | None:
  """The newest generation of a JSON file that is whole."""
  return durable.read(path, _load_state, **options)


def check(
  run_dir: str | os.PathLike[str], say: Callable[[str], Any] = _logger.warning
) -> None:
  """Looks at all that a run goes on from; nothing may be using it.

  Removes what killed writers left; of a file whose newest generation is broken
  the one before becomes the newest.

  Args:
    run_dir: of the run.
    say: gets a sentence for each file that is broken.

  Raises:
    durable.Broken: the run cannot go on without a file, and it is broken with
      its older generation.
  """
  run = pathlib.Path(run_dir)
  for part in (run, run / 'checkpoints', run / 'metrics', run / 'replay'):
    durable.sweep(part)
  kept = run / 'checkpoints'
  for name in sorted(
    {path.name.removesuffix('.older') for path in kept.glob('*.npz*')}
  ):
    if name.endswith('.npz'):
      read(kept / name, repair=True, say=say)
  read_state(run / 'metrics' / COUNTER, repair=True, say=say)


def _load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  with zipfile.ZipFile(path) as whole:
    # Before any of it is made sense of.
    broken = whole.testzip()
  if broken is not None:
    raise ValueError(f'the checksum of {broken} does not fit')
  with np.load(path) as saved:
    return {name: saved[name] for name in saved if name != _CHECKSUM}


def _load_state(path: pathlib.Path) -> dict[str, Any]:
  state = json.loads(path.read_text(encoding='utf-8'))
  state.pop(_CHECKSUM, None)
  if not state:
    raise ValueError('it is empty')
  return jsonable.decode(state)
