"""Finds a CPython 3.10, on any Python 3 and with the standard library only."""

import json
import os
import subprocess
import sys

# Launchpad has no wheels for anything newer, and Acme needs Launchpad.
SERIES = (3, 10)

NOT_FOUND = """\
CPython 3.10 was not found, and the stack runs on no other version
(Launchpad has no wheels for newer ones). {looked}

Ways to get one; none of them touches the Python you have:
  uv python install 3.10
  pyenv install 3.10
  conda create -n py310 python=3.10      (then: conda activate py310)
  apt install python3.10 python3.10-venv (Ubuntu 22.04)
Then run the same command again. To name an interpreter yourself:
  MURMURATION_PYTHON=path/to/python3.10 make environment"""

# Run with -I by the interpreter that is asked.
DESCRIBE = """
import json, platform, sys
try:
  import ensurepip, venv
  able = True
except ImportError:
  able = False
print(json.dumps({
    'executable': sys.executable,
    'version': list(sys.version_info[:3]),
    'implementation': platform.python_implementation(),
    'makes_venv': able}))
"""


class NoInterpreter(Exception):
  """There is no CPython 3.10 to use; the message says how to get one."""


def newest_first(directory, prefix):
  """Names in `directory` that start with `prefix`, 3.10.13 before 3.10.9."""
  try:
    names = [n for n in os.listdir(directory) if n.startswith(prefix)]
  except OSError:
    return []

  def numbers(name):
    spaced = ''.join(c if c.isdigit() else ' ' for c in name)
    return [int(n) for n in spaced.split()]

  return sorted(names, key=numbers, reverse=True)


def candidates(environ):
  """Yields paths that may be a CPython 3.10, nearest to the user first."""
  home = environ.get('HOME') or os.path.expanduser('~')
  yield sys.executable
  for directory in environ.get('PATH', os.defpath).split(os.pathsep):
    for name in ('python3.10', 'python3', 'python'):
      path = os.path.join(directory or '.', name)
      if os.path.isfile(path) and os.access(path, os.X_OK):
        yield path
  pyenv = environ.get('PYENV_ROOT') or os.path.join(home, '.pyenv')
  data = environ.get('XDG_DATA_HOME') or os.path.join(home, '.local', 'share')
  uv = environ.get('UV_PYTHON_INSTALL_DIR') or os.path.join(
    data, 'uv', 'python'
  )
  for directory, prefix in (
    (os.path.join(pyenv, 'versions'), '3.10'),
    (uv, 'cpython-3.10'),
  ):
    for version in newest_first(directory, prefix):
      path = os.path.join(directory, version, 'bin', 'python3.10')
      if os.path.exists(path):
        yield path


def describe(path):
  """Asks an interpreter what it is.

  A pyenv shim is there and executable even when it leads nowhere, so only
  running it tells.

  Returns:
    The dict that DESCRIBE prints, or None when `path` does not run.
  """
  try:
    process = subprocess.run(
      [path, '-I', '-c', DESCRIBE],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      timeout=20,
    )
    return json.loads(process.stdout.decode())
  except (OSError, ValueError, subprocess.TimeoutExpired):
    return None


def fault(found):
  """Why what `describe` found cannot be used, or None when it can."""
  if not found:
    return 'does not run'
  version = '.'.join(str(n) for n in found['version'])
  if tuple(found['version'][:2]) != SERIES:
    return 'is Python ' + version
  if found['implementation'] != 'CPython':
    return f'is {found["implementation"]}, not CPython'
  if not found['makes_venv']:
    return (
      'lacks the modules venv and ensurepip (Debian, Ubuntu: '
      'apt install python3.10-venv)'
    )
  return None


def find(environ=None):
  """The path of a CPython 3.10 that can make environments.

  Raises:
    NoInterpreter: none was found, or the one that MURMURATION_PYTHON names
      cannot be used.
  """
  environ = os.environ if environ is None else environ
  named = environ.get('MURMURATION_PYTHON')
  if named:
    # What the user names is used or refused, never passed over.
    found = describe(named)
    reason = fault(found)
    if reason:
      raise NoInterpreter(
        f'MURMURATION_PYTHON={named} {reason}; a CPython 3.10 is needed. '
        'Name another one, or unset it to have one looked for.'
      )
    return found['executable']
  faults = {}
  for path in candidates(environ):
    if path in faults:
      continue
    found = describe(path)
    faults[path] = fault(found)
    if not faults[path]:
      return found['executable']
  looked = ['Looked at:']
  looked += [f'  {path} {reason}' for path, reason in faults.items()]
  raise NoInterpreter(NOT_FOUND.format(looked='\n'.join(looked)))
