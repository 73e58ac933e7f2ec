"""Versions of the packages of a run, and packages that only a flag needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform

_PACKAGES = (
  'tensorflow-cpu', 'dm-reverb', 'dm-sonnet', 'dm-acme',
  'gymnasium', 'mujoco', 'numpy', 'murmuration',
)  # fmt: skip


def require(flag: str, modules: dict[str, str]) -> None:
  """Refuses a flag, such as '--sink=wandb', whose packages are missing.

  `modules` maps each module to its name for pip.
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


def versions() -> dict[str, str]:
  """What a reader needs to run it again."""
  found = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = 'not installed'
  return found
