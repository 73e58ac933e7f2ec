"""Says what is wrong with the environment, and what mends it.

    make doctor

Standard library only, any Python 3.6 or newer: it has to run where nothing
else does. Exit code 0 when all is well, 1 when something is wrong.
"""

import argparse
from importlib import machinery
import json
import os
import pkgutil
import platform
import shutil
import subprocess
import sys

import environment as environment_lib
import machine

REBUILD = 'make distclean environment'

# What is named in a bug report, of all that is locked.
SHOWN = """
tensorflow-cpu dm-reverb dm-launchpad-nightly dm-acme dm-sonnet gymnasium numpy
protobuf
""".split()

VERSIONS = """
import importlib.metadata, json, re
print(json.dumps({
    re.sub('[-_.]+', '-', d.metadata['Name']).lower(): d.version
    for d in reversed([*importlib.metadata.distributions()])  # the first wins
    if d.metadata['Name']}))
"""


def shell_problems(environ, environment):
  """Yields (problem, fix) of the shell's variables."""
  sites = [e.site for e in (environment, environment.stack) if e and e.site]
  ours = [os.path.realpath(path) for path in (environment_lib.ROOT, *sites)]
  for path in environ.get('PYTHONPATH', '').split(os.pathsep):
    if not os.path.exists(path) or os.path.realpath(path) in ours:
      continue  # hides nothing
    there = [module.name for module in pkgutil.iter_modules([path])]
    found = [(n, machinery.PathFinder.find_spec(n, ours)) for n in there]
    hidden = [name for name, spec in found if spec and spec.loader]
    if hidden:
      yield f'PYTHONPATH={path} hides {", ".join(hidden)}', 'unset PYTHONPATH'
  if environ.get('PYTHONHOME'):
    what = f'PYTHONHOME={environ["PYTHONHOME"]} hides locked packages'
    yield what, 'unset PYTHONHOME'


def package_problems(locked, installed):
  """Yields (problem, fix) of versions that differ from the locked ones."""
  if 'dm-launchpad' in installed:
    yield 'dm-launchpad is installed over ' + environment_lib.LAUNCHPAD, REBUILD
  for name in sorted(locked):
    found = installed.get(name, 'nothing')
    if locked[name] != found:
      yield f'{name}: {found} is installed; {locked[name]} is locked', REBUILD


def examine(environment):
  """Prints what there is; yields (problem, fix)."""
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  free = shutil.disk_usage(environment.root).free
  print(f'system      {platform.platform()}')
  print(
    f'machine     {os.cpu_count()} cores, {memory / 1e9:.1f} GB of memory, '
    f'{free / 1e9:.0f} GB of disk free'
  )
  yield from shell_problems(os.environ, environment)
  try:
    python = machine.find(environment.series, environment.python)
    print(f'python      {python}')
    state = environment.needed()
  except machine.SetupError as e:
    yield str(e), 'as it says'
    return
  if state != 'nothing':
    yield f'{environment.directory}: {state} is to be done', 'make environment'
  if not environment.bin.exists():
    return
  command = [environment.bin, '-I', '-c', VERSIONS]
  try:
    installed = json.loads(subprocess.check_output(command).decode())
  except (OSError, ValueError, subprocess.CalledProcessError):
    yield f'{environment.bin} does not run, or cannot list packages', REBUILD
    return
  print(f'packages    {environment.directory}')
  for name in SHOWN:
    print(f'  {name:24s} {installed.get(name, "not installed")}')
  pins = environment_lib.read_pins((environment.stack or environment).pins)
  pins.update(environment_lib.read_pins(environment.pins))
  locked = {n: text.split('==')[1].split()[0] for n, text in pins.items()}
  yield from package_problems(locked, installed)
  print('imports     all of them, one after the other ...', flush=True)
  why = environment_lib.broken(environment)
  if why:
    yield f'not all can be imported:\n{why}', REBUILD


def main():
  parser = argparse.ArgumentParser(description='Says what is wrong.')
  parser.add_argument('name', nargs='?', default='', choices=('', 'extras'))
  parser.add_argument('--python', default='', help='as for environment.py')
  args = parser.parse_args()
  print(f'network     {network_of_runs()}')
  environment = environment_lib.Environment(args.name, args.python)
  problems = list(examine(environment))
  if not problems:
    print('Nothing is wrong.')
    return 0
  print(f'\n{len(problems)} found:')
  # Without it `make` would build the environment of another Python.
  ending = f' PYTHON={args.python}' if args.python else ''
  for what, fix in problems:
    if fix.startswith('make '):
      fix = fix.replace('environment', args.name or 'environment') + ending
    print(f'- {what}\n  fix: {fix}')
  return 1


def network_of_runs():
  """Whether runs get a private network on this machine, in one line."""
  sys.path.append(str(environment_lib.ROOT))
  try:
    from murmuration.replay import isolation
  except (ImportError, SyntaxError):  # no Linux, or a Python before 3.7
    return 'no private network here'
  return isolation.found()


if __name__ == '__main__':
  sys.exit(main())
