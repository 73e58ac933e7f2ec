"""Installs Launchpad and Acme, which pip cannot take from the wheel's own list.

  murmuration setup           # once, after pip install of the wheel

Launchpad's last file is for CPython 3.10, because of its compiled half,
Courier, which loads beside TensorFlow 2.12 only. Nodes of this project do not
talk over it. So the Python half is taken, with a stub for Courier (courier.py),
and made into a wheel for any CPython. Acme pins another Launchpad; it is made
into a wheel that does not. pip installs and removes both as it does others.

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
import site
import subprocess
import sys
import tempfile
import zipfile

_LAUNCHPAD = 'dm-launchpad-nightly'
# Acme as in requirements/lock.txt; a test compares them.
PINS = {
  _LAUNCHPAD: (
    '0.5.2.dev20230303',
    '5ff322d92e5dbcb4389ef9e508940fa4f5c43817d447df156924ba55f318c4bd',
  ),
  'dm-acme': (
    '0.4.0',
    '4b43e7738914cdf0134935485a5d9255189e59f73d442bef057c94279d7691ff',
  ),
}
_IMPORTED = ('launchpad', 'acme')
_KEPT = r'(launchpad|acme)/.*[^/]|[^/]*\.dist-info/(METADATA|LICENSE)'
# Launchpad's own tests need mock; Acme pins the released Launchpad.
_NOT_NEEDED = rb'Requires-Dist: (mock|dm-launchpad)\b.*\n'
_STUB = pathlib.Path(__file__).with_name('courier.py')
_PIP = (sys.executable, '-I', '-m', 'pip', '--disable-pip-version-check')


class SetupError(Exception):
  """Something could not be installed; the message says what to do."""


def require() -> None:
  """Raises ImportError, with what to type, where one of them is missing."""
  missing = [n for n in _IMPORTED if importlib.util.find_spec(n) is None]
  if missing:
    raise ImportError(
      f'{" and ".join(missing)} cannot be imported: Launchpad and Acme are not '
      'among what pip installs with the wheel. Run once:  murmuration setup'
    )


def is_there(name: str) -> bool:
  """Whether this environment has the pinned version, and the stub of today."""
  try:
    found = importlib.metadata.distribution(name)
  except importlib.metadata.PackageNotFoundError:
    return False
  stub = pathlib.Path(str(found.locate_file(_STUB.name)))
  return found.version == PINS[name][0] and (
    name != _LAUNCHPAD
    or (stub.is_file() and stub.read_bytes() == _STUB.read_bytes())
  )


def install(name: str, directory: pathlib.Path) -> None:
  """Downloads a package, makes a wheel of what is used, and installs that.

  Args:
    name: of the package, in PINS.
    directory: an empty one, for the files.

  Raises:
    SetupError: pip failed, with what it said.
  """
  version, digest = PINS[name]
  wanted = directory / 'wanted.txt'
  wanted.write_text(f'{name}=={version} --hash=sha256:{digest}\n')
  words = ['--no-deps', '--require-hashes', '-r', wanted]
  if name == 'dm-acme':  # published as source
    _pip('wheel', *words, '-w', directory)
  else:
    words += ['--only-binary=:all:', '--python-version=3.10', '-d', directory]
    _pip('download', *words)
  (whole,) = directory.glob('*.whl')
  half = python_half(whole, directory)
  # The same version with another stub would be left as it is.
  _pip('install', '--no-deps', '--no-index', '--force-reinstall', half)


def python_half(whole: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
  """Makes a wheel, for any CPython, of what is used of another one.

  Args:
    whole: Launchpad's or Acme's.
    directory: where to.

  Returns:
    Where it is.
  """
  with zipfile.ZipFile(whole) as source:
    contents = {
      name: source.read(name)
      for name in source.namelist()
      if re.fullmatch(_KEPT, name)
    }
  (said,) = (name for name in contents if name.endswith('/METADATA'))
  about = said.partition('/')[0]
  contents[said] = re.sub(_NOT_NEEDED, b'', contents[said])
  contents[f'{about}/WHEEL'] = (
    b'Wheel-Version: 1.0\nGenerator: murmuration\n'
    b'Root-Is-Purelib: true\nTag: py3-none-any\n'
  )
  if 'launchpad/__init__.py' in contents:
    contents['courier.py'] = _STUB.read_bytes()
  record = f'{about}/RECORD'
  lines = [f'{record},,\n']
  for name, content in contents.items():
    hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    digest = hashed.decode().rstrip('=')
    lines.append(f'{name},sha256={digest},{len(content)}\n')
  made = directory / 'made'
  made.mkdir()
  path = made / f'{about.removesuffix(".dist-info")}-py3-none-any.whl'
  with zipfile.ZipFile(path, 'w') as half:
    for name, content in contents.items():
      half.writestr(name, content)
    half.writestr(record, ''.join(lines))
  return path


def _pip(*words: object) -> None:
  command = [*_PIP, *map(str, words)]
  own = pathlib.Path(site.getusersitepackages()).resolve()
  if own in pathlib.Path(__file__).resolve().parents:
    # There the wheel is, and -I would hide it.
    command.remove('-I')
    command += ['--user'] if words[0] == 'install' else []
  done = subprocess.run(
    command,
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
  parser.parse_args()
  try:
    for name, (version, _) in PINS.items():
      if is_there(name):
        print(f'{name} {version} is there.')
        continue
      with tempfile.TemporaryDirectory() as directory:
        install(name, pathlib.Path(directory))
      print(f'{name} {version} installed.', flush=True)
  except SetupError as e:
    print(f'error: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
