"""Installs pinned packages into an environment of their own.

    python3 requirements/environment.py                      # .venv
    python3 requirements/environment.py --python=python3.10  # .venv-python3.10
    python3 requirements/environment.py extras               # .venv-extras
    python3 requirements/environment.py sb3                  # .peers/sb3

Without a name it is the locked stack, which `extras` sees too. uv installs it,
or pip where uv fails, from the index that pip is configured with. A finished
environment is left as it is. Any Python from 3.7 on runs this.
"""

import argparse
import ast
import fcntl
import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(os.path.abspath(__file__)).parent
ROOT = HERE.parent
SETUP = ROOT / 'murmuration' / 'setup.py'  # installs Launchpad
PYTHONS = {'next': ['3.13'], 'courier': ['3.10']}  # others: 3.11, or else 3.10
FAILURES = (OSError, subprocess.CalledProcessError)
# What follows #! may be neither long nor have spaces.
COMMAND = """#!/bin/sh
"exec" "{python}" "$0" "$@"
from murmuration import command
raise SystemExit(command.main())
"""


def find(name, asked):
  """The path of a CPython that will do: on PATH, of pyenv, or of uv."""
  home, wanted = os.path.expanduser('~'), PYTHONS.get(name, ['3.11', '3.10'])
  for version in wanted:
    paths = [f'{path}/python{version}' for path in os.get_exec_path()]
    paths += glob.glob(
      f'{home}/.pyenv/versions/{version}.*/bin/python{version}'
    )
    paths += glob.glob(f'{home}/.local/share/uv/python/*/bin/python{version}')
    if asked not in ('', f'python{version}'):
      paths = [asked]
    check = (
      f'import ensurepip, sys; assert sys.version.startswith("{version}.")'
    )
    for path in filter(shutil.which, paths):
      inside = ROOT in pathlib.Path(path).parents  # it may be deleted
      command = [path, '-I', '-c', check]  # pyenv's may lead nowhere
      if not inside and not subprocess.call(command, stderr=subprocess.DEVNULL):
        return path
  sys.exit(
    f'No CPython {" or ".join(wanted)} with venv was found. Install one (uv '
    f'python install {version}, pyenv install {version}, apt install '
    f'python{version}-venv), or name one: make PYTHON=PATH ...'
  )


def run(*command, **variables):
  environ = {**os.environ, 'PIP_USER': '0', **variables}
  words = [str(word) for word in command]
  subprocess.run(words, check=True, env=environ)


def pip_settings(pip):
  """The index that pip is configured with, as uv's variables."""
  said = subprocess.check_output([*map(str, pip), 'config', 'list']).decode()
  found = {'UV_INDEX_STRATEGY': 'unsafe-best-match'}  # as pip does
  others = {'cert': 'SSL_CERT_FILE', 'trusted-host': 'UV_INSECURE_HOST'}
  keys = '|'.join(['(?:extra-)?index-url', 'find-links', 'no-index', *others])
  for section in ('global', 'install', ':env:'):  # the last one wins
    for key, value in re.findall(rf'^{section}\.({keys})=(.*)$', said, re.M):
      variable = others.get(key, 'UV_' + key.upper().replace('-', '_'))
      between = ',' if key == 'find-links' else ' '
      found[variable] = between.join(ast.literal_eval(value).split())
  return {**found, **os.environ}


def install(name, pins, python):
  """Installs the pins, by uv or else by pip."""
  pip = (python, '-I', '-m', 'pip', '--disable-pip-version-check')
  flags = ['-r', pins]
  if name in ('', 'extras'):
    flags.append('--no-deps')  # what extras need may be in the stack
  if not name:
    flags.append('--require-hashes')
  try:
    uv = shutil.which('uv') or python.with_name('uv')
    if not os.path.exists(uv):
      run(*pip, 'install', '-q', '--require-hashes', '-r', HERE / 'uv.txt')
    command = [uv, 'pip', 'install', '--python', python, *flags]
    command += ['--compile-bytecode', '--build-constraints', HERE / 'lock.txt']
    run(*command, **pip_settings(pip))
  except FAILURES as e:
    print(f'environment: {e}\nenvironment: trying pip', flush=True)
    if not name:  # what builds the packages that come as source
      run(*pip, 'install', '-q', 'setuptools<81', 'wheel')
      flags.append('--no-build-isolation')
    run(*pip, 'install', '-q', *flags)


def link(venv, paths):
  """Makes directories importable, and the command bin/murmuration."""
  (site,) = venv.glob('lib/python3*/site-packages')
  (site / 'murmuration.pth').write_text(''.join(f'{path}\n' for path in paths))
  command = venv / 'bin' / 'murmuration'
  command.write_text(COMMAND.format(python=venv / 'bin' / 'python'))
  command.chmod(0o755)


def make(name, asked):
  """Makes an environment, or leaves it if it is finished."""
  asked = os.path.abspath(asked) if os.sep in asked else asked
  ending = f'-{os.path.basename(asked)}' if asked else ''
  pins, where = (
    HERE / f'{name or "lock"}.txt',
    f'.venv-{name}' if name else '.venv',
  )
  if not pins.exists():
    pins, where = HERE / 'peers' / f'{name}.txt', f'.peers/{name}'
  venv = (ROOT / f'{where}{ending}').resolve()  # perhaps on another disk
  stack = glob.glob(f'{ROOT}/.venv{ending}/lib/python3*/site-packages')
  sees = [*stack, ROOT] if name == 'extras' else [ROOT]
  files = (pins, __file__, SETUP, SETUP.with_name('courier.py'))
  content = b''.join(pathlib.Path(path).read_bytes() for path in files)
  digest = hashlib.sha256(content + f'{asked} {sees}'.encode()).hexdigest()
  stamp, wanted = venv / 'murmuration.json', {'root': str(ROOT), 'is': digest}
  with pins.open('r+') as lock:  # NFS locks only what can be written
    fcntl.flock(lock, fcntl.LOCK_EX)
    found = json.loads(stamp.read_text()) if stamp.exists() else {}
    if found == wanted and (venv / 'bin' / 'python').exists():
      return
    if venv.exists() and os.listdir(venv) and found.get('root') != str(ROOT):
      sys.exit(f'{venv} was made elsewhere. Move it away, then try again.')
    base = find(name, asked)
    print(f'environment: making {venv} with {base}: minutes', flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({'root': str(ROOT)}))
    run(base, '-I', '-m', 'venv', venv)
    install(name, pins, venv / 'bin' / 'python')
    if not name:
      run(venv / 'bin' / 'python', '-I', SETUP)
    if name in ('', 'extras'):
      link(venv, sees)
    stamp.write_text(json.dumps(wanted))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('name', nargs='?', default='')
  parser.add_argument('--python', default='', help='a name or a path')
  args = parser.parse_args()
  try:
    for one in ['', 'extras'] if args.name == 'extras' else [args.name]:
      make(one, args.python)
  except FAILURES as e:
    sys.exit(f'environment: {e}')
