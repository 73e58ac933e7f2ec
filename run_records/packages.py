"""Packages that a flag needs and the lock does not have."""

from __future__ import annotations

import importlib.util


def require(flag: str, modules: dict[str, str]) -> None:
  """Refuses a flag, such as '--sink=wandb', whose packages are missing.

  `modules` maps each module to its name for pip.

  Raises:
    ValueError: with the command that installs the packages.
  """
  missing = [name for module, name in modules.items() if not _installed(module)]
  if missing:
    raise ValueError(
      f'{flag} needs {" and ".join(missing)}, not installed here. In a clone: '
      'make extras, then .venv-extras/bin/python instead of .venv/bin/python. '
      f'Elsewhere: python -m pip install {" ".join(missing)}.'
    )


def _installed(module: str) -> bool:
  return importlib.util.find_spec(module) is not None
