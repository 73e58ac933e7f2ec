"""Says what is wrong with the environment, and what mends it.

    make doctor

Standard library only, any Python 3.6 or newer: it has to run where nothing
else does. Exit code 0 when all is well, 1 when something is wrong.
"""

import collections
import json
import os
import platform
import resource
import socket
import subprocess
import sys

import environment
import interpreters

# What is named in a bug report, of all that is locked.
SHOWN = """
tensorflow dm-reverb dm-launchpad-nightly dm-acme dm-sonnet gymnasium ray jax
numpy protobuf
""".split()

REBUILD = 'make distclean environment'

VERSIONS = """
import importlib.metadata, json, re
print(json.dumps({
    re.sub('[-_.]+', '-', d.metadata['Name']).lower(): d.version
    for d in importlib.metadata.distributions() if d.metadata['Name']}))
"""

Problem = collections.namedtuple('Problem', 'what fix')


def machine():
  """Yields lines on the machine."""
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  stat = os.statvfs(environment.ROOT)
  free = stat.f_bavail * stat.f_frsize
  yield f'system      {platform.platform()}'
  yield (
    f'machine     {os.cpu_count()} cores, {memory / 1e9:.1f} GB of memory, '
    f'{free / 1e9:.0f} GB of disk free'
  )


def shell_problems(environ):
  """Yields what in the shell's variables or limits breaks the stack."""
  if environ.get('PYTHONPATH'):
    yield Problem(
      f'PYTHONPATH={environ["PYTHONPATH"]} comes before the locked packages',
      'unset PYTHONPATH',
    )
  if environ.get('PYTHONHOME'):
    yield Problem('PYTHONHOME is set', 'unset PYTHONHOME')
  proxies = [
    name
    for name in ('grpc_proxy', 'https_proxy', 'http_proxy')
    if environ.get(name)
  ]
  spared = environ.get('no_grpc_proxy') or environ.get('no_proxy') or ''
  if proxies and 'localhost' not in spared and spared != '*':
    yield Problem(
      f'{proxies[0]} is set: gRPC (Reverb) asks the proxy for localhost too',
      'export no_proxy=localhost,127.0.0.1',
    )
  try:
    socket.getaddrinfo('localhost', None)
  except OSError:
    yield Problem(
      'the name localhost does not resolve; nodes find each other by it',
      'add "127.0.0.1 localhost" to the hosts file',
    )
  files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
  if 0 <= files < 1024:
    yield Problem(
      f'a process may open {files} files; nodes need more', 'ulimit -n 4096'
    )


def package_problems(locked, installed):
  """Yields how the installed versions differ from the locked ones."""
  if 'dm-launchpad' in installed:
    # Installing dm-acme with its dependencies does this.
    yield Problem(
      'dm-launchpad is installed over dm-launchpad-nightly; its Courier '
      'library was made for another TensorFlow',
      REBUILD,
    )
  missing = sorted(set(locked) - set(installed))
  if missing:
    yield Problem('not installed: ' + ', '.join(missing), REBUILD)
  for name in sorted(set(locked) & set(installed)):
    if locked[name] != installed[name]:
      yield Problem(
        f'{name} {installed[name]} is installed; {locked[name]} is locked',
        REBUILD,
      )


def locked_versions(path=environment.LOCK):
  """{name: version} as the lock has it."""
  entries = environment.read_lock(path)
  return {
    name: text.split('==')[1].split()[0] for name, text in entries.items()
  }


def installed_versions(venv=environment.VENV):
  """{name as in the lock: version} of what is installed."""
  process = subprocess.run(
    [environment.python_of(venv), '-I', '-c', VERSIONS],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
  )
  return json.loads(process.stdout.decode() or '{}')


def state_problem(venv=environment.VENV):
  """The Problem with .venv as a whole, or None."""
  try:
    todo = environment.needed(environment.wanted_stamp(), venv)
  except environment.SetupError as e:
    return Problem(str(e), 'mv .venv .venv.old && make environment')
  what = {
    'nothing': None,
    'create': '.venv is not there yet',
    'rebuild': '.venv is unfinished, moved, or made from another lock',
    'check': 'the last checks of .venv were not made',
  }[todo]
  return what and Problem(what, 'make environment')


def link_problem(venv=environment.VENV, root=environment.ROOT):
  """The Problem with how .venv finds this checkout, or None."""
  path = os.path.join(environment.site_of(venv), 'murmuration.pth')
  try:
    with open(path) as f:
      found = f.read().strip()
  except OSError:
    found = 'nothing'
  if found == root:
    return None
  return Problem(
    f'.venv leads to {found} for the packages of this project', REBUILD
  )


def import_problems():
  """Prints how long each import takes; yields those that fail."""
  print('imports', flush=True)
  for result in environment.check(
    environment.STACK + environment.own_packages()
  ):
    said = result.error or f'{result.seconds:6.2f} s'
    print(f'  {result.name:24s} {said}')
    if result.error:
      yield Problem(f'import {result.name}: {result.error}', REBUILD)


def examine():
  """Prints what there is; returns the list of Problems."""
  problems = []
  for line in machine():
    print(line)
  try:
    environment.refuse_platform()
    print(f'python 3.10 {interpreters.find()}')
  except environment.SetupError as e:
    problems.append(Problem(str(e), 'another machine'))
  except interpreters.NoInterpreter as e:
    problems.append(Problem(str(e), 'uv python install 3.10'))
  problems += shell_problems(os.environ)
  problems += filter(None, [state_problem()])
  if not os.path.exists(environment.python_of()):
    return problems
  installed = installed_versions()
  for name in SHOWN:
    print(f'  {name:24s} {installed.get(name, "not installed")}')
  problems += package_problems(locked_versions(), installed)
  problems += filter(None, [link_problem()])
  problems += import_problems()
  return problems


def main():
  problems = examine()
  if not problems:
    print('Nothing is wrong.')
    return 0
  print(f'\n{len(problems)} found:')
  for problem in problems:
    print(f'- {problem.what}\n  fix: {problem.fix}')
  return 1


def network_of_runs():
  """Whether runs get a private network on this machine, in one line."""
  root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  sys.path.append(root)
  try:
    from replay import isolation
  except (ImportError, SyntaxError):  # no Linux, or a Python before 3.7
    return 'no private network here'
  return isolation.found()


if __name__ == '__main__':
  print(f'network     {network_of_runs()}')
  sys.exit(main())
