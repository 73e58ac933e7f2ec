"""Writes episodes as Minari 0.5 data sets: HDF5, and a description in JSON.

  ROOT/NAME-v0/data/main_data.hdf5    episode_0/observations [T + 1, ...],
                                      actions, rewards, terminations,
                                      truncations [T], ...
  ROOT/NAME-v0/data/metadata.json

https://minari.farama.org/content/dataset_standards. This does not use Minari,
which has many dependencies; with `MINARI_DATASETS_PATH=ROOT`, Minari's
`minari.load_dataset('NAME-v0')` reads the result.
"""

from __future__ import annotations

from collections.abc import Iterable
import importlib
import json
import pathlib
import tempfile
from typing import Any

import gymnasium
import numpy as np

from murmuration.replay import episodes as episodes_lib

_VERSION = '0.5.4'  # Minari version with this format


def write(
  root: pathlib.Path,
  name: str,
  environment_id: str,
  episodes: Iterable[episodes_lib.Episode],
  about: dict[str, str],
) -> tuple[int, int]:
  """Writes a data set, with actions in the environment's own units.

  If this fails, nothing is written.

  Args:
    root: directory of data sets.
    name: 'NAME-v0'.
    episodes: with canonical actions.
    about: further fields of metadata.json, such as 'algorithm_name'.

  Returns:
    Numbers of episodes and steps.

  Raises:
    ValueError: the environment cannot be made, or there is no episode.
    FileExistsError: the data set exists already.
  """
  target = root / name
  if target.exists():
    raise FileExistsError(f'{target} is there already. Give another directory.')
  environment = _made(environment_id)
  try:
    spec = environment.spec
    spaces = _flat(environment.observation_space), environment.action_space
  finally:
    environment.close()
  root.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f'.{name}-', dir=root) as partial:
    # A subdirectory, as only the temporary directory itself is private.
    made = pathlib.Path(partial) / name
    counts = _write(made / 'data', name, spec, spaces, episodes, about)
    made.rename(target)
  return counts


def _write(
  directory: pathlib.Path,
  name: str,
  spec: Any,
  spaces: tuple[Any, Any],
  episodes: Iterable[episodes_lib.Episode],
  about: dict[str, str],
) -> tuple[int, int]:
  import h5py  # slow to import, and not needed for arrays

  directory.mkdir(parents=True)
  count = steps = 0
  with h5py.File(directory / 'main_data.hdf5', 'w', track_order=True) as file:
    for episode in episodes:
      length = len(episode.rewards)
      last = np.arange(length) == length - 1
      group = file.create_group(f'episode_{count}')
      group.attrs.update(id=count, total_steps=length)
      for field, data in {
        'observations': episode.observations.astype(spaces[0].dtype),
        'actions': _own_units(spaces[1], episode.actions),
        'rewards': episode.rewards,
        'terminations': last & episode.terminated,
        'truncations': last & (not episode.terminated),
      }.items():
        group.create_dataset(field, data=data)
      count, steps = count + 1, steps + length
  if not count:
    raise ValueError(
      'no episode has ended in what replay holds. Export a longer run, or '
      'only arrays: --format=arrays.'
    )
  (directory / 'metadata.json').write_text(
    json.dumps(
      {
        'dataset_id': name,
        'total_episodes': count,
        'total_steps': steps,
        'data_format': 'hdf5',
        'jpeg_encoding': False,
        'observation_space': json.dumps(_space(spaces[0])),
        'action_space': json.dumps(_space(spaces[1])),
        'env_spec': spec.to_json() if spec else None,
        'minari_version': _VERSION,
        **about,
      }
    ),
    encoding='utf-8',
  )
  return count, steps


def _made(environment_id: str) -> Any:
  module, _, name = environment_id.rpartition(':')
  try:
    if module:
      found = getattr(importlib.import_module(module), name, None)
      if callable(found):  # the user's own environment, without an id
        return found()
    return gymnasium.make(environment_id)
  except Exception as e:  # an environment may raise anything
    raise ValueError(
      f'{environment_id} cannot be made ({type(e).__name__}: {e}), and Minari '
      'wants its spaces. Arrays do not: --format=arrays.'
    ) from e


def _flat(space: Any) -> Any:
  """The space of observations as replay holds them."""
  box = isinstance(space, gymnasium.spaces.Box) and space.shape
  return space if box else gymnasium.spaces.flatten_space(space)


def _own_units(space: Any, actions: np.ndarray) -> np.ndarray:
  """Canonical actions in the environment's own units."""
  if isinstance(space, gymnasium.spaces.Discrete):
    return actions.astype(np.int64) + int(space.start)
  if not np.issubdtype(space.dtype, np.floating):
    # Numbers of combinations, whose last part varies fastest.
    low, high = np.zeros(space.shape, int), np.ones(space.shape, int)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
      low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, gymnasium.spaces.Box):
      low, high = space.low.astype(int), space.high.astype(int)
    parts = np.unravel_index(actions, (high - low + 1).ravel())
    found = np.reshape(np.transpose(parts), (-1, *space.shape)) + low
    return found.astype(space.dtype)
  low, high = space.low.astype(float), space.high.astype(float)
  units = (np.clip(actions, -1.0, 1.0) + 1.0) / 2.0
  # The difference of bounds may be more than a float64 holds.
  return (low * (1.0 - units) + high * units).astype(space.dtype)


def _space(space: Any) -> dict[str, Any]:
  if isinstance(space, gymnasium.spaces.Discrete):
    start, n = int(space.start), int(space.n)
    return {'type': 'Discrete', 'dtype': 'int64', 'start': start, 'n': n}
  if isinstance(space, gymnasium.spaces.MultiDiscrete):
    return {
      'type': 'MultiDiscrete',
      'dtype': str(space.dtype),
      'nvec': space.nvec.tolist(),
      'start': space.start.tolist(),
    }
  if isinstance(space, gymnasium.spaces.MultiBinary):
    return {'type': 'MultiBinary', 'n': space.n}
  return {
    'type': 'Box',
    'dtype': str(space.dtype),
    'shape': list(space.shape),
    'low': space.low.tolist(),
    'high': space.high.tolist(),
  }
