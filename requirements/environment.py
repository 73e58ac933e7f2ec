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

Needs any Python 3.6 or newer. uv installs where it is on PATH, else pip. An
interrupted call is taken up by the next one; a finished environment is left at
once, without the network. doctor.py says what is wrong, should anything be.
"""

import argparse
from concurrent import futures
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

import machine

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LAUNCHPAD = 'dm-launchpad-nightly'
BUILDERS = ('setuptools', 'wheel')  # of packages that come as source

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
tensorboard pytest hypothesis ray agents environment_loops replay launch
murmuration
""".split()

# One line per name, marked: the libraries print too.
IMPORT = """
import importlib, sys, time
for name in sys.argv[1:]:
  started, error = time.time(), ''
  try:
    importlib.import_module(name)
  except BaseException as e:
    error = ' '.join((type(e).__name__ + ': ' + str(e)).split())
  print('\\n@%s|%.2f|%s' % (name, time.time() - started, error), flush=True)
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
    self.name, self.python, self.root = name, python, root
    peer = (f'.peers/{name}', f'peers/{name}.txt', ('3.11',))
    where, pins, self.series = PLACES.get(name, peer)
    if python:
      where += '-' + os.path.basename(python)
    self.pins = os.path.join(HERE, pins)
    self.directory = os.path.join(root, where)
    self.stamp = os.path.join(self.directory, 'murmuration.json')
    self.log = os.path.join(self.directory, 'install.log')
    self.bin = os.path.join(self.directory, 'bin', 'python')
    # What it sees besides its own packages.
    self.stack = Environment('', python, root) if name == 'extras' else None

  @property
  def site(self):
    """Its site-packages."""
    lib = os.path.join(glob.escape(self.directory), 'lib')
    return glob.glob(os.path.join(lib, 'python3*', 'site-packages'))[0]

  def wanted(self):
    """What a finished environment of this checkout says about itself."""
    stamp = {'root': self.root}
    for key, path in (('pins', self.pins), ('script', __file__)):
      with open(path, 'rb') as f:
        stamp[key] = hashlib.sha256(f.read()).hexdigest()
    return stamp

  def write_stamp(self, stamp):
    with open(self.stamp + '.new', 'w') as f:
      json.dump(stamp, f)
    os.replace(self.stamp + '.new', self.stamp)

  def needed(self):
    """What is to be done: 'nothing', 'finish' or 'create'.

    'finish' takes up what was interrupted; 'create' begins anew, also where
    other pins made the environment, or where it was moved (its scripts name
    their interpreter by its full path).

    Raises:
      machine.SetupError: the directory is there, and is not of this script.
    """
    if not os.path.exists(self.directory):  # or a link that leads nowhere
      return 'create'
    try:
      if os.listdir(self.directory) == []:
        return 'create'
      with open(self.stamp) as f:
        stamp = json.load(f)
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
    same = all(stamp.get(key) == wanted[key] for key in ('root', 'pins'))
    if not (same and os.path.exists(self.bin)):
      return 'create'
    return 'nothing' if stamp == wanted else 'finish'


def clean_environ():
  """os.environ without what would put packages elsewhere or hide them."""
  unwanted = 'PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE PIP_TARGET '
  unwanted += 'PIP_PREFIX PIP_ROOT PIP_REQUIREMENT PIP_CONSTRAINT PIP_NO_BINARY'
  environ = {k: v for k, v in os.environ.items() if k not in unwanted.split()}
  environ.update(PIP_USER='0', PIP_DISABLE_PIP_VERSION_CHECK='1')
  environ.update(PYTHONNOUSERSITE='1', TF_CPP_MIN_LOG_LEVEL='3')
  return environ


def run(command, environment, complaint):
  """Runs a command, its output at the end of the environment's log.

  Raises:
    machine.SetupError: it failed; with the complaint and the end of the log.
  """
  with open(environment.log, 'ab') as f:
    code = subprocess.call(
      command,
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env=clean_environ(),
      close_fds=False,
    )
  if code:
    with open(environment.log, errors='replace') as f:
      end = ''.join(f.readlines()[-25:])
    raise machine.SetupError(
      f'{complaint} The end of {environment.log}:\n{end}'
    )


def read_pins(path):
  """{name: its lines, hashes included}, in file order."""
  with open(path) as f:
    found = re.findall(r'^([\w.-]+)(==.*\n(?: +.*\n)*)', f.read(), re.M)
  return {name: name + rest for name, rest in found}


def install(environment):
  """Installs the pins: with uv where it is and works, else with pip.

  Raises:
    machine.SetupError: pip failed.
  """
  pins = read_pins(environment.pins)
  launchpad = not environment.name and pins.pop(LAUNCHPAD, '')
  pip = [environment.bin, '-I', '-m', 'pip']
  tools = [pip + ['install', '--progress-bar=off']]
  if shutil.which('uv'):
    uv = ['uv', 'pip', 'install', '--compile-bytecode']
    tools.insert(0, uv + ['--python', environment.bin])
  for tool in tools:
    try:
      install_with(tool, environment, pins)
      break
    except machine.SetupError:
      if tool is tools[-1]:
        raise
      # It does not read pip's configuration, which may name another index.
      say(f'uv failed ({environment.log} says why); trying pip')
  if launchpad:
    install_launchpad(environment)


def install_with(tool, environment, pins):
  """Installs the pins with one tool, and says how far it is.

  One pip uses one core, most of the time to unpack and to compile. Where all is
  locked, packages are independent of each other and are dealt out.

  Raises:
    machine.SetupError: it failed.
  """
  options, stages = [], [[list(pins)]]
  if environment.stack:
    options = ['--no-deps']  # some of them are in the stack
  elif not environment.name:
    options = ['--no-deps', '--require-hashes', '--no-build-isolation']
    # First what builds the packages that come as source.
    rest = [name for name in pins if name not in BUILDERS]
    count = 1 if tool[0] == 'uv' else min(12, len(rest))
    stages = [[list(BUILDERS)], [rest[i::count] for i in range(count)]]
  started, done = time.time(), 0

  def one(names):
    path = write(environment, ''.join(pins[name] for name in names), names[0])
    run(
      tool + options + ['-r', path],
      environment,
      f'could not install {environment.pins}. Not found: pip needs an '
      'index that has it, and a network that reaches it (pip config, '
      'PIP_INDEX_URL, https_proxy). Another hash: the index serves a file '
      'that is not the locked one. Then run the same command again.',
    )
    return len(names)

  for parts in stages:
    with futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
      for count in pool.map(one, parts):
        done += count
        seconds = time.time() - started
        say(f'installed {done:3d} of {len(pins)} ({seconds:.0f} s)')


def write(environment, text, name):
  path = os.path.join(environment.directory, f'requirements-{name}.txt')
  with open(path, 'w') as f:
    f.write(text)
  return path


def install_launchpad(environment):
  """Launchpad's Python half, by murmuration/setup.py; Acme is locked."""
  script = os.path.join(ROOT, 'murmuration', 'setup.py')
  command = [environment.bin, '-I', script]
  run(command, environment, f'{LAUNCHPAD} could not be installed.')


def link(environment):
  """Makes project and stack importable, and the command bin/murmuration.

  A path file rather than `pip install -e`, whose finder comes after sys.path: a
  directory `configs` where the user is would be taken for ours.
  """
  seen = [environment.stack.site] if environment.stack else []
  with open(os.path.join(environment.site, 'murmuration.pth'), 'w') as f:
    f.writelines(path + '\n' for path in [*seen, environment.root])
  command = os.path.join(environment.directory, 'bin', 'murmuration')
  with open(command, 'w') as f:
    f.write(COMMAND.format(python=environment.bin))
  os.chmod(command, 0o755)


def check(environment, names=IMPORTS):
  """Imports all in one fresh process; yields (name, seconds, error or '').

  If the interpreter itself dies, its exit code is the error of the last one.
  """
  process = subprocess.run(
    [environment.bin, '-c', IMPORT] + names,
    cwd=environment.directory,  # The project would hide a missing link.
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    env=clean_environ(),
  )
  lines = process.stdout.decode(errors='replace').splitlines()
  found = [line[1:].split('|', 2) for line in lines if line.startswith('@')]
  for name, seconds, error in found:
    yield name, float(seconds), error
  if len(found) < len(names):
    error = f'the interpreter ended with code {process.returncode}'
    yield names[len(found)], 0.0, error


def create(environment):
  """Makes an empty virtual environment in place of what was there."""
  machine.refuse(ROOT)
  named, stack = environment.python, environment.stack
  if stack:
    if not os.path.exists(stack.bin):
      raise machine.SetupError(
        f'{stack.directory} has to be there first: make environment'
      )
    named = stack.bin  # of the same version
  python = machine.find(environment.series, named)
  say(f'making {environment.directory} with {python}: some minutes')
  if os.path.islink(environment.directory):
    os.unlink(environment.directory)
  shutil.rmtree(environment.directory, ignore_errors=True)
  os.makedirs(environment.directory)
  # First of all: what has a stamp, even half of one, is ours.
  environment.write_stamp({'root': environment.root})
  command = [python, '-I', '-m', 'venv', environment.directory]
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
    held = open(environment.pins, 'r+')
  except OSError:
    held = open(environment.pins)
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
    broken = [
      f'  {n}: {error}\n' for n, _, error in check(environment) if error
    ]
    if broken:
      raise machine.SetupError(
        f'installed, but these do not import:\n{"".join(broken)}'
        '`make doctor` looks for the reason; `make distclean` starts anew.'
      )
  environment.write_stamp(environment.wanted())
  say(f'ready after {time.time() - started:.0f} s: {environment.directory}')


def main():
  peers = os.listdir(os.path.join(HERE, 'peers'))
  names = {*PLACES, *(p[:-4] for p in peers if p.endswith('.txt'))}
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('name', nargs='?', default='', choices=sorted(names))
  parser.add_argument('--python', default='', help='a name or a path')
  args = parser.parse_args()
  environment = Environment(args.name, args.python)
  try:
    make(environment)
  except machine.SetupError as e:
    print(f'environment: {e}', file=sys.stderr)
    return 1
  except OSError as e:
    print(
      f'environment: {e}. Needed are a disk with room, a checkout that can be '
      f'written, and that all of {environment.directory} is yours (after a '
      'sudo make: sudo rm -r it). Then run the same command again.',
      file=sys.stderr,
    )
    return 1
  except KeyboardInterrupt:
    print('environment: interrupted; the same command goes on', file=sys.stderr)
    return 130
  return 0


if __name__ == '__main__':
  sys.exit(main())
