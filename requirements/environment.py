"""Makes an environment of pinned packages, or leaves it if it is right.

    python3 requirements/environment.py                  # .venv
    python3 requirements/environment.py --python=python3.10
    python3 requirements/environment.py next             # .venv-next
    python3 requirements/environment.py extras           # .venv-extras
    python3 requirements/environment.py site             # .venv-site
    python3 requirements/environment.py sb3              # .peers/sb3

Without a name it is the locked stack, on CPython 3.11 or else 3.10, each
package checked against its hash; `--python` names another interpreter, and
takes a directory beside .venv. `next` is for what needs no Reverb, on a Python
that Reverb has no file for. `extras` is what a run can use and none needs; it
sees the stack, which has to be there. `site` makes pages of docs/. The rest are
what benchmarks compare with.

Needs any Python 3.6 or newer. An interrupted call is taken up by the next one;
a finished environment is left at once, without the network.
"""

import argparse
from concurrent import futures
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import machine

HERE = pathlib.Path(os.path.abspath(__file__)).parent
ROOT = HERE.parent
LAUNCHPAD = 'dm-launchpad-nightly'
BUILDERS = ('setuptools', 'wheel')  # of packages that come as source
# What Launchpad is made with here, by the first, and its stub for Courier.
SETUP = ROOT / 'murmuration' / 'setup.py'
STUB = ROOT / 'murmuration' / 'courier.py'
PARTS = 12  # of what is installed: more than there are cores, so that all work

# Directory, pins, Pythons (preferred first) of an environment by its name; the
# others are peers. '' is the stack.
PLACES = {
  '': ('.venv', 'lock.txt', ('3.11', '3.10')),
  'next': ('.venv-next', 'next.txt', ('3.13',)),
  'extras': ('.venv-extras', 'extras.txt', ('3.11', '3.10')),
  'site': ('.venv-site', 'site.txt', ('3.11', '3.10')),
  'courier': ('.peers/courier', 'peers/courier.txt', ('3.10',)),
}

# What fails explains what fails after it.
IMPORTS = """
numpy scipy tensorflow sonnet tree reverb launchpad acme.agents.tf.d4pg trfl
gymnasium Box2D pygame mujoco ale_py cv2 imageio msgpack psutil rich matplotlib
tensorboard pytest hypothesis ray murmuration.launch
""".split()

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
  print('importing', name, flush=True)  # the last one said is one that crashes
  importlib.import_module(name)
"""

# As pip writes it for a wheel whose path is too long for #!, or has spaces.
COMMAND = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from murmuration import command

sys.exit(command.main())
"""


def say(message):
  print('environment: ' + message, flush=True)


class Environment:
  """Where an environment is, what it holds, and which Pythons it may have."""

  def __init__(self, name='', python='', root=ROOT):
    if os.sep in python:  # the same from everywhere
      where, file = os.path.split(python)
      python = os.path.join(os.path.realpath(where), file)
    self.name, self.python, self.root = name, python, root
    peer = (f'.peers/{name}', f'peers/{name}.txt', ('3.11',))
    where, pins, self.series = PLACES.get(name, peer)
    if python:
      where += '-' + os.path.basename(python)
    self.pins = HERE / pins
    self.directory = pathlib.Path(root) / where
    self.stamp = self.directory / 'murmuration.json'
    self.log = self.directory / 'install.log'
    self.bin = self.directory / 'bin' / 'python'
    # What it sees besides its own packages.
    self.stack = Environment('', python, root) if name == 'extras' else None

  @property
  def site(self):
    """Its site-packages."""
    return next(self.directory.glob('lib/python3*/site-packages'), '')

  def wanted(self):
    """What a finished environment of this checkout says about itself."""
    return {
      'root': str(self.root),
      'name': self.name,
      'python': self.python,
      'seen': str(self.stack.site) if self.stack else '',
      'pins': digest(self.pins),
      'script': digest(__file__, SETUP, STUB),
    }

  def write_stamp(self, stamp):
    new = self.stamp.with_suffix('.new')
    new.write_text(json.dumps(stamp))
    new.replace(self.stamp)

  def is_ours(self):
    """Whether it is an empty directory, or one that this checkout made."""
    try:
      return os.listdir(self.directory) == [] or (
        json.loads(self.stamp.read_text())['root'] == str(self.root)
      )
    except (OSError, ValueError, KeyError):
      return False

  def needed(self):
    """What is to be done: 'nothing', 'finish' or 'create'.

    'finish' takes up what was interrupted, or made by other scripts; 'create'
    begins anew, also where the environment is of other pins, another
    interpreter or another Python's stack, or where it was moved (its scripts
    name their interpreter by its full path).

    Raises:
      machine.SetupError: the directory is there, and is not of this script.
    """
    if not self.directory.exists():  # or a link that leads nowhere
      return 'create'
    try:
      if os.listdir(self.directory) == []:
        return 'create'
      stamp = json.loads(self.stamp.read_text())
    except (OSError, ValueError):
      if self.name:
        return 'create'
      raise machine.SetupError(
        f'{self.directory} is there, but this script did not make it, or '
        'cannot read it, so it is left alone. Move it away '
        f'(mv {self.directory} {self.directory}.old), then run the same '
        'command again.'
      ) from None
    wanted = self.wanted()
    keys = ('root', 'pins', 'seen')
    same = all(stamp.get(key, '') == wanted[key] for key in keys)
    if not (same and self.bin.exists()):
      return 'create'
    named = stamp.get('python', '')
    if named != self.python and not self._is_of(self.python):
      return 'create'
    return 'nothing' if stamp == {**wanted, 'python': named} else 'finish'

  def _is_of(self, named):
    """Whether it was made with the interpreter of this name or path."""
    both = (str(self.bin), named)
    try:
      return os.path.samefile(*(machine.find(self.series, p) for p in both))
    except (machine.SetupError, OSError):
      return False


def digest(*paths):
  """The hash of what is in files."""
  content = b''.join(pathlib.Path(path).read_bytes() for path in paths)
  return hashlib.sha256(content).hexdigest()


def clean_environ():
  """os.environ without what would put packages elsewhere or hide them."""
  names = 'TARGET|PREFIX|ROOT|REQUIREMENT|CONSTRAINT|NO_BINARY'
  hides = re.compile(f'PYTHON|PIP_({names})$')
  environ = {k: v for k, v in os.environ.items() if not hides.match(k)}
  environ.update(PIP_USER='0', PIP_DISABLE_PIP_VERSION_CHECK='1')
  return dict(environ, PYTHONNOUSERSITE='1')


def run(command, environment, complaint):
  """Runs a command, its output at the end of the environment's log.

  Raises:
    machine.SetupError: it failed; with the complaint and the end of the log.
  """
  with environment.log.open('ab') as f:
    code = subprocess.call(
      command,
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env=clean_environ(),
      close_fds=False,
    )
  if code:
    said = environment.log.read_text(errors='replace').splitlines(True)
    raise machine.SetupError(
      f'{complaint} The end of {environment.log}:\n{"".join(said[-25:])}'
    )


def read_pins(path):
  """{name: its lines, hashes included}, in file order."""
  pin = r'^([\w.-]+)(==.*\n(?: +.*\n)*)'
  found = re.findall(pin, path.read_text(), re.M)
  return {name: name + rest for name, rest in found}


def install(environment):
  """Installs the pins: with uv where it is and works, else with pip.

  Raises:
    machine.SetupError: pip failed.
  """
  pip = [environment.bin, '-I', '-m', 'pip', 'install', '--progress-bar=off']
  tools = [(pip, PARTS)]
  if shutil.which('uv'):
    uv = ['uv', 'pip', 'install', '--compile-bytecode']
    tools.insert(0, (uv + ['--python', environment.bin], 1))
  for tool, count in tools:
    try:
      install_with(tool, count, environment)
      break
    except machine.SetupError:
      if tool is pip:
        raise
      # It does not read pip's configuration, which may name another index.
      say(f'uv failed ({environment.log} says why); trying pip')
  if not environment.name:
    # Launchpad's Python half, and nothing where that is there; Acme is locked.
    command = [environment.bin, '-I', SETUP]
    run(command, environment, f'{LAUNCHPAD} could not be installed.')


def install_with(tool, count, environment):
  """Installs the pins with one tool, and says how far it is.

  One pip uses one core, most of the time to unpack and to compile. Where all is
  locked, packages are independent of each other and are dealt out in `count`
  parts.

  Raises:
    machine.SetupError: it failed.
  """
  pins = read_pins(environment.pins)
  stages = [[list(pins)]]
  if environment.stack:
    tool = tool + ['--no-deps']  # some of them are in the stack
  elif not environment.name:
    tool = tool + ['--no-deps', '--require-hashes', '--no-build-isolation']
    # First what builds the packages that come as source.
    rest = [n for n in pins if n not in (LAUNCHPAD, *BUILDERS)]
    stages = [[[*BUILDERS]], [rest[i::count] for i in range(count)]]
  started, done = time.time(), 0

  def one(names):
    path = environment.directory / f'requirements-{names[0]}.txt'
    path.write_text(''.join(pins[name] for name in names))
    run(
      tool + ['-r', path],
      environment,
      f'could not install {environment.pins}. Not found: the tool needs an '
      'index that has it, and a network that reaches it (pip config, '
      'PIP_INDEX_URL, https_proxy). Another hash: the index serves a file '
      'that is not the locked one. Then run the same command again.',
    )
    return len(names)

  for parts in stages:
    with futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
      for found in pool.map(one, parts):
        done += found
        seconds = time.time() - started
        say(f'installed {done:3d} of {len(pins)} ({seconds:.0f} s)')


def link(environment):
  """Makes project and stack importable, and the command bin/murmuration.

  With a path file, scripts can import tests/ as well.
  """
  seen = [environment.stack.site] if environment.stack else []
  paths = ''.join(f'{path}\n' for path in [*seen, environment.root])
  (environment.site / 'murmuration.pth').write_text(paths)
  command = environment.bin.with_name('murmuration')
  command.write_text(COMMAND.format(python=environment.bin))
  command.chmod(0o755)


def broken(environment):
  """Why what is installed cannot be imported: the last lines; '' if it can."""
  process = subprocess.run(
    [environment.bin, '-I', '-c', IMPORT] + IMPORTS,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    env=clean_environ(),
    cwd=ROOT,  # The caller's own directory may have been removed.
  )
  said = process.stdout.decode(errors='replace').splitlines()[-20:]
  said.append(f'The interpreter ended with code {process.returncode}.')
  return '\n'.join(said) if process.returncode else ''


def create(environment):
  """Makes an empty virtual environment in place of what was there."""
  machine.refuse(environment)
  named, stack = environment.python, environment.stack
  if stack:
    if not stack.bin.exists():
      raise machine.SetupError(
        f'{stack.directory} has to be there first: make environment'
      )
    named = stack.bin  # of the same version
  python = machine.find(environment.series, named)
  say(f'making {environment.directory} with {python}: some minutes')
  directory = environment.directory
  linked = directory.is_symlink() and environment.is_ours()
  if linked:
    directory = directory.resolve()  # stays, but venv refuses a link
  elif directory.is_symlink():
    directory.unlink()
  shutil.rmtree(directory, ignore_errors=True)
  # Where a disk is mounted, the directory is emptied and remains.
  directory.mkdir(parents=True, exist_ok=linked)
  # First of all: what has a stamp, even half of one, is ours.
  environment.write_stamp({'root': str(environment.root)})
  command = [python, '-I', '-m', 'venv', directory]
  run(command, environment, f'{python} -m venv failed.')
  stamp = environment.wanted()
  del stamp['script']  # comes when all is done
  environment.write_stamp(stamp)


def make(environment):
  """Makes, finishes or leaves an environment.

  Raises:
    machine.SetupError: with what to do about it.
  """
  if environment.needed() == 'nothing':
    return
  # Held until the process ends, and inherited by pip: one that outlived its
  # killed parent is waited for, instead of losing its directory.
  try:  # Never written, but NFS locks only what is open for writing.
    held = environment.pins.open('r+')
  except OSError:
    held = environment.pins.open()
  os.set_inheritable(held.fileno(), True)
  try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    say('another set-up is running; waiting for it')
    fcntl.flock(held, fcntl.LOCK_EX)
  except OSError as e:
    say(f'no lock here ({e}): let no other set-up run at the same time')
  started = time.time()
  todo = environment.needed()  # Perhaps the one we waited for has done it all.
  if todo == 'nothing':
    return
  if todo == 'create':
    create(environment)
  install(environment)
  if environment.name in ('', 'extras'):
    link(environment)
  if not environment.name:
    say('checking every import')
    why = broken(environment)
    if why:
      raise machine.SetupError(
        f'installed, but this does not import:\n{why}\n'
        '`make doctor` looks for the reason; `make distclean` starts anew.'
      )
  environment.write_stamp(environment.wanted())
  say(f'ready after {time.time() - started:.0f} s: {environment.directory}')


def main():
  names = {*PLACES, *(path.stem for path in HERE.glob('peers/*.txt'))}
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('name', nargs='?', default='', choices=sorted(names))
  parser.add_argument('--python', default='', help='a name or a path')
  args = parser.parse_args()
  environment = Environment(args.name, args.python)
  try:
    make(environment)
    return 0
  except machine.SetupError as e:
    why = str(e)
  except OSError as e:
    why = (
      f'{e}. Needed are a disk with room, a checkout that can be written, and '
      f'that all of {environment.directory} is yours (after a sudo make: sudo '
      'rm -r it). Then run the same command again.'
    )
  except KeyboardInterrupt:
    why = 'interrupted; the same command goes on'
  print(f'environment: {why}', file=sys.stderr)
  return 1


if __name__ == '__main__':
  sys.exit(main())
