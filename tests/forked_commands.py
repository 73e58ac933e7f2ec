"""Runs scripts with many command lines, each in a fork; a helper of tests.

  python tests/forked_commands.py

So the stack is imported once for the command lines of all tests. Each line of
the input is answered by a line of JSON:

  {'script': path, 'cases': [...]}   [{'code', 'stdout', 'stderr'}, ...]
  {'start': {...}}                   its pid, while it runs
  {'ended': pid}                     the exit code of what was started and ended

A case is {'argv': [...], 'cwd': directory, 'mode': one of the below}; what is
started has 'script', 'argv', 'cwd', 'env', all of its variables, and 'output',
the file that it prints into.

Modes: 'start' changes nothing; all others fail loudly if a program starts, but
for 'resolve', which prints the resolved config, engine and run directory as
JSON there; 'disk_full' and 'read_only' have the disk look so.
"""

import atexit
import collections
import ctypes
import functools
import gc
import json
import os
import pathlib
import runpy
import shutil
import signal
import sys
import tempfile
import traceback

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Without what only this script sees.
_PATH = [path for path in sys.path if not path.startswith(str(_ROOT / 'tests'))]
sys.path.insert(0, str(_ROOT))


def main() -> None:
  for line in sys.stdin:
    print(json.dumps(_answer(**json.loads(line))), flush=True)


def _answer(script='', cases=(), start=None, ended=None):
  if start is not None:
    return _start(**start)
  if ended is not None:
    return os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1])
  return _answers(script, cases)


@functools.cache
def _warm(script: str) -> None:
  """Imports what the script and its runs do, and has forks share it."""
  runpy.run_path(script, run_name='imported')
  from murmuration.environment_loops import environments
  from murmuration.launch import registry
  from murmuration.run_records import later

  later.load()
  for name in registry.agents():
    registry.agent(name)
  # Gymnasium imports what it makes.
  for name in ('CartPole-v1', 'InvertedPendulum-v5'):
    environments.spec(name)
  from murmuration.run_records import plots  # noqa: F401

  gc.collect()
  gc.freeze()


def _start(script: str, argv: list, cwd: str, env: dict, output: str) -> int:
  _warm(script)
  parent = os.getpid()
  pid = os.fork()
  if pid:
    return pid
  code = 1
  try:
    from murmuration.launch.engines import linux

    # Ctrl-C in a terminal goes to a whole process group.
    os.setsid()
    linux.die_with_parent(parent, signal.SIGTERM)
    for number, path in enumerate((os.devnull, output, output)):
      flags = os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY
      os.dup2(os.open(path, flags), number)
    _set_environment(env)
    paths = env.get('PYTHONPATH', '').split(os.pathsep)
    sys.path[:] = [str(_ROOT), *filter(None, paths), *_PATH]
    atexit._clear()
    code = _child(script, {'argv': argv, 'cwd': cwd, 'mode': 'start'})
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
  except BaseException:
    traceback.print_exc()
  finally:
    os._exit(code)


def _set_environment(env: dict) -> None:
  """The variables of this process, also where others read them in /proc."""
  os.environ.clear()
  os.environ.update(env)
  tempfile.tempdir = None
  # The kernel shows the memory of the first ones, which are in use no more.
  stat = pathlib.Path('/proc/self/stat').read_text().rsplit(')', 1)[1].split()
  start, end = int(stat[47]), int(stat[48])
  shown = f'TMPDIR={env["TMPDIR"]}'.encode()
  assert len(shown) < end - start, (shown, start, end)
  ctypes.memset(start, 0, end - start)
  ctypes.memmove(start, shown, len(shown))


def _answers(script: str, cases: list) -> list:
  _warm(script)
  results = []
  for case in cases:
    with (
      tempfile.TemporaryFile('w+') as out,
      tempfile.TemporaryFile('w+') as err,
    ):
      pid = os.fork()
      if not pid:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        atexit._clear()
        code = _child(script, case)
        atexit._run_exitfuncs()  # TensorFlow's: they remove its source files
        os._exit(code)
      _, status = os.waitpid(pid, 0)
      out.seek(0)
      err.seek(0)
      results.append(
        {
          'code': os.waitstatus_to_exitcode(status),
          'stdout': out.read(),
          'stderr': err.read(),
        }
      )
  return results


def _child(script: str, case) -> int:
  sys.argv = [script, *case['argv']]
  os.chdir(case['cwd'])
  _change(case.get('mode', 'no_start'))
  code: object = 0
  try:
    runpy.run_path(script, run_name='__main__')
  except SystemExit as e:
    code = e.code
  except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  return code if isinstance(code, int) else int(code is not None)


def _change(mode: str) -> None:
  if mode == 'start':
    return
  from murmuration.launch import engines
  from murmuration.launch import session

  def resolve(cell, engine, run_dir, resume, **unused):
    cell.build('nowhere')
    found = {
      'agent': cell.agent.name,
      'config': cell.config,
      'engine': engine,
      'run_dir': run_dir and str(run_dir),
    }
    print(json.dumps(found))
    return 0

  def start(*unused, **unused_too):
    print('A program was started.', file=sys.stderr)
    os._exit(77)

  if mode == 'resolve':
    session.run = resolve  # type: ignore[assignment]
  else:
    engines.run = start
  if mode == 'disk_full':
    usage = collections.namedtuple('usage', 'total used free')
    full = usage(10**9, 10**9 - 5_000_000, 5_000_000)
    setattr(shutil, 'disk_usage', lambda _: full)  # noqa: B010
  if mode == 'read_only':
    os.access = lambda *unused: False


if __name__ == '__main__':
  main()
