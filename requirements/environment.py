"""Makes .venv with the locked stack.

    python3 requirements/environment.py     # make or repair .venv

Needs only the standard library, and runs on any Python 3.6 or newer; the
environment itself needs CPython 3.10 (interpreters.py looks for one). The
packages are exactly those of lock.txt, checked against its hashes; uv installs
them where it is on PATH, else pip. A call that finds nothing to do returns at
once; what an interrupted call left behind is repaired by the next one.
doctor.py says what is wrong, should anything be.
"""

import collections
from concurrent import futures
import fcntl
import glob
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time

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

# Everything the project or one of its libraries imports, in an order in which
# a failure explains those that follow.
STACK = """
numpy scipy tensorflow sonnet trfl tensorflow_probability tree dm_env jax reverb
launchpad courier acme acme.adders.reverb gymnasium Box2D pygame mujoco ale_py
cv2 imageio PIL ray msgpack cloudpickle google.protobuf portpicker psutil absl
ml_collections rliable rich matplotlib tensorboard pytest hypothesis
""".split()

# One line per name, marked: the libraries print too.
IMPORT = """
import importlib, json, sys, time
for name in sys.argv[1:]:
  started = time.time()
  try:
    importlib.import_module(name)
    error = None
  except BaseException as e:
    error = type(e).__name__ + ': ' + str(e)
  print('\\n@' + json.dumps([name, error, time.time() - started]), flush=True)
"""

Result = collections.namedtuple('Result', 'name error seconds')


class SetupError(Exception):
  """The environment cannot be made; the message says what to do."""


def say(message):
  print('environment: ' + message, flush=True)


# --- What is there, and what has to be done -----------------------------------


def python_of(venv=VENV):
  return os.path.join(venv, 'bin', 'python')


def site_of(venv=VENV):
  return os.path.join(venv, 'lib', 'python3.10', 'site-packages')


def wanted_stamp():
  """What a finished .venv of this checkout says about itself."""

  def digest(path):
    with open(path, 'rb') as f:
      return hashlib.sha256(f.read()).hexdigest()

  script = os.path.join(HERE, 'environment.py')
  return {'root': ROOT, 'lock': digest(LOCK), 'script': digest(script)}


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
  try:
    with open(os.path.join(venv, STAMP)) as f:
      stamp = json.load(f)
  except (OSError, ValueError):
    raise SetupError(
      f'{venv} is there, but this script did not make it, so it is left '
      'alone. Move it away (mv .venv .venv.old) or delete it (make '
      'distclean), then run the same command again.'
    ) from None
  if not os.path.exists(python_of(venv)):
    return 'rebuild'
  if any(stamp.get(key) != wanted[key] for key in ('root', 'lock')):
    return 'rebuild'
  return 'nothing' if stamp == wanted else 'check'


def refuse_platform():
  """Raises SetupError where the stack has no wheels."""
  machine = platform.machine()
  if sys.platform != 'linux' or machine not in ('x86_64', 'AMD64'):
    raise SetupError(
      f'this is {sys.platform} on {machine}; Launchpad and Reverb have wheels '
      'for Linux on x86-64 only. Use such a machine, a virtual machine, or a '
      'container (on Windows: WSL 2).'
    )


def refuse_full_disk(path=ROOT):
  """Raises SetupError when the stack would not fit."""
  free = shutil.disk_usage(path).free
  if free < NEEDED_DISK:
    raise SetupError(
      f'{free / 1e9:.1f} GB are free on the disk of {path}; the stack needs '
      f'{NEEDED_DISK / 1e9:.0f} GB. Free some, or clone to another disk.'
    )


def hold(path=LOCK):
  """Waits for another set-up, if one is running; returns the held file."""
  f = open(path)  # Held until the process ends.
  # Inherited by pip, so that a pip that outlived its killed parent is waited
  # for, instead of having .venv deleted under it.
  os.set_inheritable(f.fileno(), True)
  try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    say('another set-up is running; waiting for it')
    fcntl.flock(f, fcntl.LOCK_EX)
  except OSError:
    pass  # A file system without locks: go on without.
  return f


# --- Making it ----------------------------------------------------------------


def clean_environ():
  """os.environ without what would put packages elsewhere or hide them."""
  unwanted = 'PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT'.split()
  unwanted += 'PIP_REQUIREMENT PIP_CONSTRAINT PIP_NO_BINARY'.split()
  environ = {k: v for k, v in os.environ.items() if k not in unwanted}
  environ['PIP_USER'] = '0'
  environ['PIP_DISABLE_PIP_VERSION_CHECK'] = '1'
  environ['PYTHONNOUSERSITE'] = '1'
  environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  environ['PYGAME_HIDE_SUPPORT_PROMPT'] = '1'
  return environ


def run(command, log):
  """Runs a command, its output at the end of the log; True if it succeeded."""
  with open(log, 'ab') as f:
    return not subprocess.call(
      command,
      stdin=subprocess.DEVNULL,
      stdout=f,
      stderr=subprocess.STDOUT,
      env=clean_environ(),
      close_fds=False,
    )


def tail(log):
  with open(log, errors='replace') as f:
    return ''.join(f.readlines()[-25:])


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
  rest = [n for n in names if n not in LARGE]
  return [[n] for n in LARGE if n in names] + [
    rest[i : i + size] for i in range(0, len(rest), size)
  ]


def create(python, venv=VENV):
  """Makes an empty virtual environment, in place of what was there."""
  if os.path.islink(venv):
    os.unlink(venv)
  elif os.path.isdir(venv):
    shutil.rmtree(venv)
  os.makedirs(venv)
  # First of all: what has a stamp without 'lock' is ours, and unfinished.
  write_stamp({'root': ROOT}, venv)
  log = os.path.join(venv, 'install.log')
  if not run([python, '-I', '-m', 'venv', venv], log):
    raise SetupError(f'{python} -m venv failed:\n{tail(log)}')


def install(entries, venv=VENV):
  """Installs the locked packages: with uv, or else with one pip per core.

  Most of the time goes into unpacking and compiling, and one pip uses one
  core. As --no-deps makes the packages independent, they can be dealt out.

  Raises:
    SetupError: it failed, twice with pip; the message has the end of the log.
  """
  log = os.path.join(venv, 'install.log')
  started = time.time()
  options = ['--no-deps', '--require-hashes', '--no-build-isolation']
  pip = [python_of(venv), '-I', '-m', 'pip', 'install', '--use-pep517']
  pip += ['--progress-bar', 'off']
  # A few packages come as source. What builds them is locked too; without
  # this, pip would fetch some setuptools of the day for each of them.
  builders = [n for n in ('setuptools', 'wheel') if n in entries]

  def with_tool(tool, name, names):
    path = os.path.join(venv, f'requirements-{name}.txt')
    with open(path, 'w') as f:
      f.write('\n'.join(entries[n] for n in names) + '\n')
    return run(tool + options + ['-r', path], log)

  found = shutil.which('uv')
  if found:
    uv = [found, 'pip', 'install', '--python', python_of(venv)]
    uv.append('--compile-bytecode')
    if with_tool(uv, 'builders', builders) and with_tool(uv, 'all', entries):
      return
    # It does not read pip's configuration, which may name another index.
    say(f'uv failed ({log} says why); trying pip')
  ok = with_tool(pip, 'builders', builders)
  done = len(builders)
  with futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
    chunks = deal([n for n in entries if n not in builders])
    waiting = {
      pool.submit(with_tool, pip, i, names): names
      for i, names in enumerate(chunks)
    }
    try:
      for future in futures.as_completed(waiting):
        ok = future.result() and ok
        done += len(waiting[future]) if future.result() else 0
        seconds = time.time() - started
        say(f'installed {done:3d} of {len(entries)} ({seconds:.0f} s)')
    finally:
      for future in waiting:
        future.cancel()
  if ok:
    return
  # A lost connection, or two pips in each other's way: once more, alone.
  say('some packages failed; once more, one after the other')
  if not with_tool(pip, 'all', entries):
    raise SetupError(
      f'pip could not install the stack. The end of {log}:\n{tail(log)}\n'
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
  with open(os.path.join(site_of(venv), 'murmuration.pth'), 'w') as f:
    f.write(root + '\n')


def own_packages(root=ROOT):
  """The project's own top-level packages."""
  found = glob.glob(os.path.join(glob.escape(root), '*', '__init__.py'))
  return sorted(os.path.basename(os.path.dirname(path)) for path in found)


def check(names, venv=VENV):
  """Imports `names` in one fresh process of `venv`.

  Returns:
    [Result(name, error or None, seconds)] in the order of `names`. Where the
    interpreter itself died, its exit code or signal is the error, and the
    names after it are tried in a new process.
  """
  results: list = []
  while len(results) < len(names):
    left = names[len(results) :]
    process = subprocess.run(
      [python_of(venv), '-c', IMPORT, *left],
      cwd=venv,  # Not the project, whose directory would hide a missing link.
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      env=clean_environ(),
      close_fds=False,
    )
    lines = process.stdout.decode(errors='replace').splitlines()
    found = [json.loads(line[1:]) for line in lines if line.startswith('@[')]
    results += [Result(*f) for f in found]
    if len(found) < len(left):
      reason = f'the interpreter ended with code {process.returncode}'
      results.append(Result(left[len(found)], reason, 0.0))
  return results


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
  broken = [r for r in check(STACK + own_packages()) if r.error]
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
