"""What this machine has: a system that will do, room, a CPython to use."""

import glob
import os
import platform
import re
import shutil
import subprocess
import sys

NEEDED_DISK = 4 * 10**9  # bytes: 2.3 GB stay, and room to unpack
SMALL_DISK = 10**9  # of what has no TensorFlow or PyTorch of its own

# Run with -I by an interpreter: what it is, and where it stays when an
# environment that it belongs to is deleted.
DESCRIBE = """
import os, platform, sys
import ensurepip, venv
name = 'python%d.%d' % sys.version_info[:2]
base = os.path.join(sys.base_prefix, 'bin', name)
made = sys.prefix != sys.base_prefix and os.path.exists(base)
print(base if made else sys.executable)
print(platform.python_implementation(), '%d.%d' % sys.version_info[:2])
"""


class SetupError(Exception):
  """The environment cannot be made; the message says what to do."""


def candidates(series, environ):
  """Yields paths that may be such a CPython, nearest to the user first."""
  yield sys.executable
  for directory in environ.get('PATH', os.defpath).split(os.pathsep):
    path = os.path.join(directory or '.', 'python' + series)
    if os.access(path, os.X_OK):
      yield path
  home = environ.get('HOME') or os.path.expanduser('~')
  pyenv = environ.get('PYENV_ROOT') or os.path.join(home, '.pyenv')
  data = environ.get('XDG_DATA_HOME') or os.path.join(home, '.local', 'share')
  for start in (f'{pyenv}/versions/', f'{data}/uv/python/cpython-'):
    found = glob.glob(f'{glob.escape(start)}{series}.*/bin/python{series}')
    # 3.11.13 before 3.11.9.
    yield from sorted(
      found, key=lambda p: [int(n) for n in re.findall(r'\d+', p)], reverse=True
    )


def examine(path, series):
  """(path of the interpreter itself, why it cannot be used or '').

  A pyenv shim is there and executable even when it leads nowhere, so only
  running it tells.
  """
  try:
    said = subprocess.check_output(
      [path, '-I', '-c', DESCRIBE], stderr=subprocess.STDOUT, timeout=20
    )
    executable, kind = said.decode().splitlines()
  except subprocess.CalledProcessError as e:
    words = e.output.decode(errors='replace').split('\n')
    hint = ''
    if "'ensurepip'" in words[-2:][0]:
      hint = f' (Debian, Ubuntu: apt install python{series[0]}-venv)'
    return path, f'does not run: {words[-2:][0]}{hint}'
  except (OSError, ValueError, subprocess.TimeoutExpired) as e:
    return path, f'does not run: {e}'
  right = kind in ['CPython ' + s for s in series]
  return executable, '' if right else 'is ' + kind


def find(series, named='', environ=os.environ):
  """The path of a CPython that can make environments.

  Args:
    series: versions such as '3.11', preferred first.
    named: what the user asked for: a name such as python3.10, which is looked
      for, or else a path, which is used or refused, never passed over.
    environ: variables of the shell.

  Raises:
    SetupError: there is none; with what was looked at and how to get one.
  """
  if named in ['python' + s for s in series]:
    series, named = [named[len('python') :]], ''
  looked = []
  for wanted in series:
    for path in [named] if named else candidates(wanted, environ):
      found, reason = examine(path, series if named else [wanted])
      if not reason:
        return found
      looked.append(f'  {path} {reason}\n')
  raise SetupError(
    f'CPython {" or ".join(series)} was not found. Looked at:\n'
    + ''.join(dict.fromkeys(looked))
    + 'Ways to get one; none of them touches the Python you have:\n'
    f'  uv python install {series[0]}\n'
    f'  pyenv install {series[0]}\n'
    f'  apt install python{series[0]} python{series[0]}-venv\n'
    'Then run the same command again, or name one: make PYTHON=PATH ...'
  )


def refuse(environment):
  """Raises SetupError where its packages have no files, or would not fit."""
  system, machine = sys.platform, platform.machine()
  if not environment.name and (system, machine) != ('linux', 'x86_64'):
    raise SetupError(
      f'this is {system} on {machine}; Reverb has files for Linux on x86-64 '
      'only. Use such a machine, a virtual machine, or a container (on '
      'Windows: WSL 2).'
    )
  directory = str(environment.directory)
  if os.path.islink(directory) and not environment.is_ours():
    directory = ''  # a link that goes; what it leads to stays
  disk = directory if os.path.isdir(directory) else environment.root
  free = shutil.disk_usage(str(disk)).free
  for where, _, names in os.walk(directory):  # all of it is deleted first
    found = [os.lstat(os.path.join(where, name)) for name in names]
    # What uv linked from its cache stays there.
    free += sum(file.st_blocks * 512 for file in found if file.st_nlink == 1)
  small = environment.name in ('extras', 'site')
  needed = SMALL_DISK if small else NEEDED_DISK
  if free < needed:
    raise SetupError(
      f'{free / 1e9:.1f} GB are free on the disk of {disk}; the packages need '
      f'{needed / 1e9:.0f} GB. Free some, or clone to another disk.'
    )
