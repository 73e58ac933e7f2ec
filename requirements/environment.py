"""Makes .venv with the locked stack.

    python3 requirements/environment.py     # make or repair .venv

Needs only the standard library, and runs on any Python 3.6 or newer; the
environment itself needs CPython 3.10 (interpreters.py looks for one). The
packages are exactly those of lock.txt, checked against its hashes. A call
that finds nothing to do returns at once; what an interrupted call left behind
is repaired by the next one. doctor.py says what is wrong, should anything be.
"""

import hashlib
import json
import os
import sys
import time

import imports
import interpreters

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LOCK = os.path.join(HERE, 'lock.txt')
VENV = os.path.join(ROOT, '.venv')
STAMP = 'murmuration.json'

# Bytes: what .venv takes (3.3 GB) and room to unpack a download.
NEEDED_DISK = 5 * 10**9

# Packages of which each takes as long to install as twenty others.
LARGE = ('tensorflow', 'jaxlib', 'ray', 'mypy', 'scipy', 'mujoco')


class SetupError(Exception):
  """The environment cannot be made; the message says what to do."""


def say(message):
  print('environment: ' + message, flush=True)


# --- What is there, and what has to be done -----------------------------------


def wanted_stamp():
  """What a finished .venv of this checkout says about itself."""

  def digest(*names):
    sha = hashlib.sha256()
    for name in names:
      with open(os.path.join(HERE, name), 'rb') as f:
        sha.update(f.read())
    return sha.hexdigest()

  return {
    'root': ROOT,
    'lock': digest('lock.txt'),
    'script': digest('environment.py', 'imports.py'),
  }


def read_stamp(venv=VENV):
  """The stamp of `venv`: a dict, or None when it has none."""
  try:
    with open(os.path.join(venv, STAMP)) as f:
      return json.load(f)
  except (OSError, ValueError):
    return None


def write_stamp(stamp, venv=VENV):
  path = os.path.join(venv, STAMP)
  with open(path + '.new', 'w') as f:
    json.dump(stamp, f)
  os.replace(path + '.new', path)


def needed(wanted, venv=VENV):
  """What is to be done: 'nothing', 'check', 'rebuild' or 'create'.

  'check' is for an installed .venv of which the last steps are to be done
  again; 'rebuild' for one that is unfinished, that another lock made, or that
  was moved (its scripts name their interpreter by its full path).

  Raises:
    SetupError: there is a .venv that this script did not make.
  """
  if not os.path.lexists(venv):
    return 'create'
  if os.path.isdir(venv) and not os.listdir(venv):
    return 'create'
  stamp = read_stamp(venv)
  if stamp is None:
    raise SetupError(
      f'{venv} is there, but this script did not make it, so it is left '
      'alone. Move it away (mv .venv .venv.old) or delete it (make '
      'distclean), then run the same command again.'
    )
  if not os.path.exists(imports.python_of(venv)):
    return 'rebuild'
  if any(stamp.get(key) != wanted[key] for key in ('root', 'lock')):
    return 'rebuild'
  return 'nothing' if stamp == wanted else 'check'


def refuse_platform():
  """Raises SetupError where the stack has no wheels."""
  import platform

  machine = platform.machine()
  if sys.platform != 'linux' or machine not in ('x86_64', 'AMD64'):
    raise SetupError(
      f'this is {sys.platform} on {machine}; Launchpad and Reverb have wheels '
      'for Linux on x86-64 only. Use such a machine, a virtual machine, or a '
      'container (on Windows: WSL 2).'
    )


def refuse_full_disk(path=ROOT):
  """Raises SetupError when the stack would not fit."""
  stat = os.statvfs(path)
  free = stat.f_bavail * stat.f_frsize
  if free < NEEDED_DISK:
    raise SetupError(
      f'{free / 1e9:.1f} GB are free on the disk of {path}; the stack needs '
      f'{NEEDED_DISK / 1e9:.0f} GB. Free some, or clone to another disk.'
    )


def hold(path=LOCK):
  """Waits for another set-up, if one is running; returns the held file."""
  import errno
  import fcntl

  f = open(path)  # Held until the process ends.
  # Inherited by pip, so that a pip that outlived its killed parent is waited
  # for, instead of having .venv deleted under it.
  os.set_inheritable(f.fileno(), True)
  try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as e:
    if e.errno == errno.EWOULDBLOCK:
      say('another set-up is running; waiting for it')
      fcntl.flock(f, fcntl.LOCK_EX)
    # Else a file system without locks: go on without.
  return f


# --- Making it ----------------------------------------------------------------


def read_lock(path=LOCK):
  """The lock as {name: its lines, hashes included}, in file order."""
  entries: dict = {}
  with open(path) as f:
    for line in f.read().splitlines():
      if not line.strip() or line.lstrip().startswith('#'):
        continue
      if not line[0].isspace():
        name = line.split('==')[0].strip()
        entries[name] = []
      entries[name].append(line)
  return {name: '\n'.join(lines) for name, lines in entries.items()}


def deal(names, size=20):
  """Splits names into what one pip installs: the large ones alone, first."""
  large = [[n] for n in LARGE if n in names]
  rest = [n for n in names if n not in LARGE]
  return large + [rest[i : i + size] for i in range(0, len(rest), size)]


def create(python, venv=VENV):
  """Makes an empty virtual environment, in place of what was there."""
  import shutil
  import subprocess

  if os.path.islink(venv):
    os.unlink(venv)
  elif os.path.isdir(venv):
    shutil.rmtree(venv)
  os.makedirs(venv)
  # First of all: what has a stamp without 'lock' is ours, and unfinished.
  write_stamp({'root': ROOT}, venv)
  process = subprocess.run(
    [python, '-I', '-m', 'venv', venv],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    env=imports.clean_environ(),
  )
  if process.returncode:
    output = process.stdout.decode(errors='replace')
    raise SetupError(f'{python} -m venv failed:\n{output}')


def pip_install(requirements, log, venv=VENV):
  """Installs one requirements file; True when pip was content."""
  import subprocess

  with open(log, 'ab') as f:
    return not subprocess.call(
      [imports.python_of(venv), '-I', '-m', 'pip', 'install', '--no-deps']
      + ['--require-hashes', '--no-build-isolation', '--use-pep517']
      + ['--progress-bar', 'off', '-r', requirements],
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env=imports.clean_environ(),
      close_fds=False,
    )


def install(entries, venv=VENV):
  """Installs the locked packages, with one pip per core.

  Most of the time goes into unpacking and compiling, and one pip uses one
  core. As --no-deps makes the packages independent, they can be dealt out.

  Raises:
    SetupError: pip failed twice; the message carries the end of its log.
  """
  from concurrent import futures

  log = os.path.join(venv, 'install.log')
  started = time.time()

  def write(name, names):
    path = os.path.join(venv, f'requirements-{name}.txt')
    with open(path, 'w') as f:
      f.write('\n'.join(entries[n] for n in names) + '\n')
    return path

  # A few packages come as source. What builds them is locked too; without
  # this, pip would fetch some setuptools of the day for each of them.
  builders = [n for n in ('setuptools', 'wheel') if n in entries]
  path = write('builders', builders)
  if not pip_install(path, log, venv) and not pip_install(path, log, venv):
    raise pip_error(log)
  done = len(builders)
  ok = True
  with futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
    chunks = deal([n for n in entries if n not in builders])
    waiting = {
      pool.submit(pip_install, write(i, names), log, venv): names
      for i, names in enumerate(chunks)
    }
    try:
      for future in futures.as_completed(waiting):
        if not future.result():
          ok = False
          continue
        done += len(waiting[future])
        say(
          f'installed {done:3d} of {len(entries)} packages '
          f'({time.time() - started:.0f} s)'
        )
    finally:
      for future in waiting:
        future.cancel()
  if not ok:
    # A lost connection, or two pips in each other's way: once more, alone.
    say('some packages failed; once more, one after the other')
    if not pip_install(write('all', entries), log, venv):
      raise pip_error(log)


def pip_error(log):
  with open(log, errors='replace') as f:
    tail = ''.join(f.readlines()[-25:])
  return SetupError(
    f'pip could not install the stack. The end of {log}:\n{tail}\n'
    'A package was not found: pip needs an index that has it, and a network '
    'that reaches it (pip config, PIP_INDEX_URL, https_proxy).\n'
    'A hash differs: the index serves another file than the locked one.\n'
    'Then run the same command again.'
  )


def link_project(venv=VENV, root=ROOT):
  """Makes the project's packages importable from any directory.

  A path file rather than `pip install -e`: the finder that setuptools would
  install comes after sys.path, so that a directory `configs` where the user
  happens to be would be taken for ours (as a namespace package).
  """
  path = os.path.join(imports.site_of(venv), 'murmuration.pth')
  with open(path, 'w') as f:
    f.write(root + '\n')


def make():
  """Makes, repairs or leaves .venv.

  Raises:
    SetupError, interpreters.NoInterpreter: with what to do about it.
  """
  wanted = wanted_stamp()
  if needed(wanted) == 'nothing':
    return
  refuse_platform()
  held = hold()
  todo = needed(wanted)  # Perhaps the one we waited for has done it all.
  if todo == 'nothing':
    return
  started = time.time()
  if todo != 'check':
    python = interpreters.find()
    if todo == 'create':
      refuse_full_disk()
    say(f'{todo} .venv with {python}')
    create(python)
    entries = read_lock()
    say(
      f'installing {len(entries)} packages: a minute or two, and the first '
      'time a download of about 1.2 GB'
    )
    install(entries)
  link_project()
  # From here on, a call that takes over has only the checks to do.
  write_stamp({'root': ROOT, 'lock': wanted['lock']})
  say('checking every import')
  names = imports.STACK + imports.own_packages(ROOT)
  broken = [r for r in imports.check(names, VENV) if r.error]
  if broken:
    lines = '\n'.join(f'  {r.name}: {r.error}' for r in broken)
    raise SetupError(
      f'installed, but these do not import:\n{lines}\n'
      '`make doctor` looks for the reason.'
    )
  write_stamp(wanted)
  held.close()
  say(f'ready in {time.time() - started:.0f} s: .venv')


def main():
  try:
    make()
  except (SetupError, interpreters.NoInterpreter) as e:
    print(f'environment: {e}', file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print(
      'environment: interrupted; the same command repairs it', file=sys.stderr
    )
    return 130
  return 0


if __name__ == '__main__':
  sys.exit(main())
