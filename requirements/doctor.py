"""Says what is wrong with the environment that runs it, and what mends it."""

import argparse
import importlib
import importlib.metadata
import os
import pathlib
import platform
import re
import sys

from murmuration.replay import isolation

ROOT = pathlib.Path(os.path.abspath(__file__)).parents[1]
IMPORTS = (
  'numpy tensorflow reverb launchpad acme gymnasium Box2D mujoco ale_py cv2'
)


def problems():
  """Yields what is wrong, and what mends it."""
  for path in ROOT.glob('requirements/*.txt'):
    if path.stem != 'lock' and f'.venv-{path.stem}' not in sys.prefix:
      continue
    for name, version in re.findall(
      r'^([\w.-]+)==(\S+)', path.read_text(), re.M
    ):
      found = {
        one.version for one in importlib.metadata.distributions(name=name)
      }
      if found != {version}:
        yield f'{name} {version} is locked, {found} installed: make distclean'
  for name in IMPORTS.split():
    print(f'imports  {name}', flush=True)  # the last one if it crashes
    try:
      file = os.path.realpath(str(importlib.import_module(name).__file__))
    except Exception as e:
      yield f'{name} cannot be imported ({e!r}): make distclean'
      continue
    if not any(os.path.realpath(p) in file for p in (ROOT, sys.prefix)):
      yield f'{name} is imported from {file}: unset PYTHONPATH'


if __name__ == '__main__':
  argparse.ArgumentParser(description=__doc__).parse_args()
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  print(f'system   {platform.platform()}, {os.cpu_count()} cores')
  print(f'python   {platform.python_version()} in {sys.prefix}')
  print(f'network  {isolation.found()}')
  found = list(problems())
  print('\n'.join(found) or 'Nothing is wrong.')
  sys.exit(bool(found))
