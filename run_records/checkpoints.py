"""Checkpoint files of a run: their names, and what they hold.

Arrays as .npz and state as JSON, each with a checksum, in two generations
(durable.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
import logging
import os
import pathlib
from typing import Any
import zipfile
import zlib

import numpy as np

from murmuration.run_records import durable
from murmuration.run_records import jsonable

# In RUN/checkpoints/.
STAR = 'star.npz'  # theta [D], version, r_star, explorer
AGENTS = 'agents.npz'  # theta [P, D], steps
BEST = 'best.npz'  # theta [D], return_mean, steps, confirmed
STAR_SERVER = 'star_server.npz'  # all that it needs to go on
# In RUN/metrics/: totals and newest rows, see launch/services/counter.py.
COUNTER = 'counter.json'

# What murmuration/playing.py plays, best first; nothing goes on from these.
PLAYED = (STAR, BEST, AGENTS)
_CHECKSUM = 'crc32'
_logger = logging.getLogger(__name__)


def directory(run_dir: str | os.PathLike[str]) -> pathlib.Path:
  """RUN/checkpoints, made if it is not there."""
  path = pathlib.Path(run_dir) / 'checkpoints'
  path.mkdir(parents=True, exist_ok=True)
  return path


def write(path: pathlib.Path, *, sync: bool = True, **arrays: Any) -> None:
  """Writes a new generation of an .npz; see `durable.write`."""
  # First, so that a directory of the zip that is cut still has it.
  whole = {_CHECKSUM: np.uint32(_checksum_of(arrays)), **arrays}
  durable.write(path, lambda file: np.savez(file, **whole), sync)


def read(path: pathlib.Path, **options: Any) -> dict[str, np.ndarray] | None:
  """The newest generation of an .npz that is whole; see `durable.read`."""
  return durable.read(path, _load_arrays, **options)


def read_to_play(
  path: pathlib.Path, say: Callable[[str], Any] = _logger.warning
) -> dict[str, np.ndarray] | None:
  """As `read`, for who writes it; what is broken is put aside, and is None."""
  try:
    return read(path, repair=True, say=say)
  except durable.Broken:
    durable.put_aside(path)
    say(f'{path} cannot be read and is put aside: it will be written anew.')
    return None


def write_state(
  path: pathlib.Path, state: Mapping[str, Any], sync: bool = True
) -> None:
  """Writes a new generation of a JSON file; see `durable.write`."""
  plain = jsonable.encode(state)
  text = json.dumps({**plain, _CHECKSUM: _checksum(plain)}, indent=2)
  durable.write(path, lambda file: file.write(f'{text}\n'.encode()), sync)


def read_state(path: pathlib.Path, **options: Any) -> dict[str, Any] | None:
  """The newest generation of a JSON file that is whole."""
  return durable.read(path, _load_state, **options)


def check(
  run_dir: str | os.PathLike[str], say: Callable[[str], Any] = _logger.warning
) -> None:
  """Looks at all that a run goes on from; nothing may be using it.

  What killed writers left is removed; a newest generation that is broken is put
  aside.

  Args:
    run_dir: of the run.
    say: gets a sentence for each file of which an older generation is taken.

  Raises:
    durable.Broken: a file is missing or broken, with its older generation,
      and it is not one that is only there to be played.
  """
  run = pathlib.Path(run_dir)
  for part in (run, run / 'checkpoints', run / 'metrics', run / 'replay'):
    durable.sweep(part)
    for name in durable.saved(part):
      if name in PLAYED:
        read_to_play(part / name, say)
      else:
        reader = read_state if name.endswith('.json') else read
        reader(part / name, repair=True, say=say)


def _load_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  with zipfile.ZipFile(path) as whole:
    # Before any of it is made sense of.
    broken = whole.testzip()
  if broken is not None:
    raise ValueError(f'the checksum of {broken} does not fit')
  with np.load(path) as saved:
    arrays = dict(saved)
  expected = arrays.pop(_CHECKSUM, None)
  if _has_checksum(path, expected) and expected != _checksum_of(arrays):
    raise ValueError('its checksum does not fit: an array is missing')
  return arrays


def _load_state(path: pathlib.Path) -> dict[str, Any]:
  state = json.loads(path.read_text(encoding='utf-8'))
  expected = state.pop(_CHECKSUM, None)
  if _has_checksum(path, expected) and expected != _checksum(state):
    raise ValueError('its checksum does not fit')
  return jsonable.decode(state)


def _has_checksum(path: pathlib.Path, found: Any) -> bool:
  """Whether a checksum has to fit: earlier versions wrote none.

  They noted no names of files either, see `durable.WRITTEN`.
  """
  name = path.name.removesuffix('.older')
  return found is not None or (path.parent / durable.WRITTEN / name).exists()


def _checksum_of(arrays: Mapping[str, Any]) -> int:
  """Of names and contents; the zip's own are of each content alone."""
  found = 0
  for name, value in sorted(arrays.items()):
    array = np.asarray(value)
    found = zlib.crc32(f'{name} {array.dtype} {array.shape}'.encode(), found)
    found = zlib.crc32(array.tobytes(), found)
  return found


def _checksum(plain: Any) -> int:
  return zlib.crc32(json.dumps(plain, sort_keys=True).encode())
