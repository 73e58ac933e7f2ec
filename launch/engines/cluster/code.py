"""Which code a host runs, as a word to compare."""

import functools
import hashlib
import importlib.metadata
import pathlib
import platform

_PACKAGES = (
  'agents',
  'configs',
  'environment_loops',
  'launch',
  'murmuration',  # nodes have what a caller of the library gave from there
  'replay',
  'run_records',
)
# What decides results, or what hosts send each other.
_PINNED = (
  'tensorflow-cpu',
  'tensorflow',
  'tensorflow-probability',
  'dm-reverb',
  'dm-launchpad-nightly',
  'dm-sonnet',
  'dm-acme',
  'numpy',
  'gymnasium',
  'mujoco',
  'ale-py',
  'box2d',
)


@functools.cache
def version() -> str:
  """Hash of the project's source, and the versions that have to be the same."""
  root = pathlib.Path(__file__).resolve().parents[3]
  found = hashlib.sha256()
  for package in _PACKAGES:
    for path in sorted((root / package).rglob('*.py')):
      found.update(str(path.relative_to(root)).encode())
      found.update(path.read_bytes())
  words = [f'project {found.hexdigest()[:12]}']
  words.append(f'Python {platform.python_version()}')
  for name in _PINNED:
    try:
      words.append(f'{name} {importlib.metadata.version(name)}')
    except importlib.metadata.PackageNotFoundError:
      pass  # such as tensorflow-cpu, where it is the one for GPUs
  return ', '.join(words)
