"""What a caller gives `train`, checked and as a helper process takes it."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
from typing import Any

# What other libraries call the arguments of `train`.
_OTHER_NAMES = {
  'total_timesteps': 'steps',
  'timesteps': 'steps',
  'env': 'environment',
  'env_id': 'environment',
  'verbose': 'progress',
  'progress_bar': 'progress',
  'log_dir': 'run_dir',
  'tensorboard_log': 'run_dir',
  'callback': 'on_evaluation',
}


def whole(steps: Any) -> int | None:
  """1e5 as 100000.

  Raises:
    ValueError: no whole number from 1 up.
  """
  if steps is None:
    return None
  if int(steps) != steps or steps < 1:
    raise ValueError(f'steps={steps!r} is no whole number from 1 up.')
  return int(steps)


def as_text(config: Mapping[str, Any]) -> dict[str, Any]:
  """Settings as text, as a command line has them.

  Raises:
    ValueError: an argument by the name that another library gives it.
  """
  for name in config:
    if name in _OTHER_NAMES:
      raise ValueError(
        f'There is no {name}=: here it is {_OTHER_NAMES[name]}=.'
      )
  return {
    name: as_text(value) if isinstance(value, Mapping) else str(value)
    for name, value in config.items()
  }


def absolute(path: str | os.PathLike[str] | None) -> pathlib.Path | None:
  return None if path is None else pathlib.Path(path).absolute()
