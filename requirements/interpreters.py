"""Finds a CPython, on any Python 3 and with the standard library only."""

import glob
import json
import os
import re
import subprocess
import sys

# Launchpad has no wheels for anything newer, and Acme needs Launchpad.
SERIES = '3.10'

NOT_FOUND = """\
CPython {series} was not found, and what is to be installed runs on no other
version. Looked at:
{looked}

Ways to get one; none of them touches the Python you have:
  uv python install {series}
  pyenv install {series}
  conda create -n py python={series}    (then: conda activate py)
  apt install python{series} python{series}-venv
Then run the same command again. To name an interpreter yourself:
  {how}"""

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
  """There is no such interpreter; the message says how to get one."""


def candidates(environ, series=SERIES):
  """Yields paths that may be such a CPython, nearest to the user first."""
  home = environ.get('HOME') or os.path.expanduser('~')
  yield sys.executable
  for directory in environ.get('PATH', os.defpath).split(os.pathsep):
    for name in ('python' + series, 'python3', 'python'):
      path = os.path.join(directory or '.', name)
      if os.path.isfile(path) and os.access(path, os.X_OK):
        yield path
  pyenv = environ.get('PYENV_ROOT') or os.path.join(home, '.pyenv')
  data = environ.get('XDG_DATA_HOME') or os.path.join(home, '.local', 'share')
  uv = environ.get('UV_PYTHON_INSTALL_DIR') or os.path.join(
    data, 'uv', 'python'
  )
  for start in (f'{pyenv}/versions/{series}', f'{uv}/cpython-{series}'):
    found = glob.glob(f'{glob.escape(start)}*/bin/python{series}')
    # 3.10.13 before 3.10.9.
    yield from sorted(
      found,
      key=lambda path: [int(n) for n in re.findall(r'\d+', path)],
      reverse=True,
    )


def describe(path):
  """The dict that DESCRIBE prints, or None when `path` does not run.

  A pyenv shim is there and executable even when it leads nowhere, so only
  running it tells.
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


def fault(found, series=SERIES):
  """Why what `describe` found cannot be used, or None when it can."""
  if not found:
    return 'does not run'
  version = '.'.join(str(n) for n in found['version'])
  if not version.startswith(series + '.'):
    return 'is Python ' + version
  if found['implementation'] != 'CPython':
    return f'is {found["implementation"]}, not CPython'
  if not found['makes_venv']:
    return (
      'lacks the modules venv and ensurepip (Debian, Ubuntu: '
      f'apt install python{series}-venv)'
    )
  return None


def find(environ=None, series=SERIES, named=None, how=None):
  """The path of a CPython that can make environments.

  Args:
    environ: variables of the shell; None: of this process.
    series: the version, '3.10'.
    named: the only path to look at; None: MURMURATION_PYTHON's, or search.
    how: the command that names an interpreter, for the message.

  Raises:
    NoInterpreter: none was found, or the named one cannot be used.
  """
  environ = os.environ if environ is None else environ
  if named is None and series == SERIES:
    named = environ.get('MURMURATION_PYTHON')
  how = how or f'MURMURATION_PYTHON=path/to/python{series} make environment'
  faults = {}
  # What the user names is used or refused, never passed over.
  for path in [named] if named else candidates(environ, series):
    if path in faults:
      continue
    found = describe(path)
    faults[path] = fault(found, series)
    if not faults[path]:
      return found['executable']
  if named:
    raise NoInterpreter(
      f'{named} {faults[named]}; a CPython {series} is needed. Name another '
      f'one ({how}), or none to have one looked for.'
    )
  looked = '\n'.join(f'  {path} {reason}' for path, reason in faults.items())
  raise NoInterpreter(NOT_FOUND.format(series=series, looked=looked, how=how))
