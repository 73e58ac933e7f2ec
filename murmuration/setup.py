"""Installs what pip cannot take from the wheel's own list: Launchpad, and Acme.

  murmuration setup           # once, after pip install of the wheel
  murmuration setup --acme    # Acme too, for acme_dqn and acme_d4pg

Launchpad's last file is for CPython 3.10, because of its compiled half,
Courier, which loads beside TensorFlow 2.12 only. Nodes of this project do not
talk over it. So the Python half is taken, with a stub for Courier (courier.py),
and made into a wheel for any CPython, which pip installs and removes like
others. Acme pins another Launchpad, and is installed without what it asks for.

Standard library only: requirements/environment.py runs this in a clone, in an
environment that is not complete yet.
"""

import argparse
import base64
import hashlib
import importlib.metadata
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

LAUNCHPAD = 'dm-launchpad-nightly'
VERSION = '0.5.2.dev20230303'
# As in requirements/lock.txt, where a test compares them.
HASH = 'sha256:5ff322d92e5dbcb4389ef9e508940fa4f5c43817d447df156924ba55f318c4bd'
ACME = 'dm-acme==0.4.0'
_STUB = pathlib.Path(__file__).with_name('courier.py')
_PIP = (sys.executable, '-I', '-m', 'pip', '--disable-pip-version-check')


class SetupError(Exception):
  """Something could not be installed; the message says what to do."""


def require() -> None:
  """Raises ImportError, with what to type, where Launchpad is missing."""
  if importlib.util.find_spec('launchpad') is None:
    raise ImportError(
      'Launchpad is not installed: it has no file that pip could take for this '
      'Python. Run once:  murmuration setup'
    )


def is_there() -> bool:
  """Whether this environment has that version of Launchpad."""
  try:
    return importlib.metadata.version(LAUNCHPAD) == VERSION
  except importlib.metadata.PackageNotFoundError:
    return False


def install(directory: pathlib.Path) -> None:
  """Downloads Launchpad's file, makes the wheel of it, and installs that.

  Args:
    directory: an empty one, for the files.

  Raises:
    SetupError: pip failed, with what it said.
  """
  wanted = directory / 'launchpad.txt'
  wanted.write_text(f'{LAUNCHPAD}=={VERSION} --hash={HASH}\n')
  _pip(
    *('download', '--no-deps', '--require-hashes', '--only-binary=:all:'),
    *('--python-version=3.10', '-d', directory, '-r', wanted),
  )
  (whole,) = directory.glob('*.whl')
  half = python_half(whole, directory / 'half')
  _pip('install', '--no-deps', '--no-index', half)


def python_half(whole: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
  """Makes a wheel of what is Python in Launchpad's, and of the stub.

  Args:
    whole: Launchpad's file.
    to: directory of the new one.

  Returns:
    Where it is.
  """
  to.mkdir()
  path = to / f'{LAUNCHPAD.replace("-", "_")}-{VERSION}-py3-none-any.whl'
  with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, 'w') as half:
    contents = {
      name: source.read(name)
      for name in source.namelist()
      if re.match(
        r'launchpad/.*[^/]$|[^/]*\.dist-info/(METADATA|LICENSE)', name
      )
    }
    about = next(n for n in contents if n.endswith('/METADATA'))[
      : -len('METADATA')
    ]
    contents['courier.py'] = _STUB.read_bytes()
    contents[f'{about}WHEEL'] = (
      b'Wheel-Version: 1.0\nGenerator: murmuration\n'
      b'Root-Is-Purelib: true\nTag: py3-none-any\n'
    )
    lines = []
    for name, content in contents.items():
      half.writestr(name, content)
      digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
      lines.append(
        f'{name},sha256={digest.decode().rstrip("=")},{len(content)}\n'
      )
    half.writestr(f'{about}RECORD', ''.join(lines) + f'{about}RECORD,,\n')
  return path


def _pip(*words: object) -> None:
  done = subprocess.run(
    [*_PIP, *map(str, words)],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  if done.returncode:
    hint = ''
    if 'No module named pip' in done.stdout:
      hint = f'\nFirst: {sys.executable} -m ensurepip'
    raise SetupError(f'pip {words[0]} failed:\n{done.stdout.rstrip()}{hint}')


def main() -> int:
  parser = argparse.ArgumentParser(
    prog='murmuration setup',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument('--acme', action='store_true', help=f'{ACME} too')
  args = parser.parse_args()
  try:
    if is_there():
      print(f'{LAUNCHPAD} {VERSION} is installed.')
    else:
      with tempfile.TemporaryDirectory() as directory:
        install(pathlib.Path(directory))
      print(f'Installed {LAUNCHPAD} {VERSION}, its Python half.')
    if args.acme:
      _pip('install', '--no-deps', ACME)
      print(f'Installed {ACME}.')
  except SetupError as e:
    print(f'error: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
