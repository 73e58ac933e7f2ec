"""Runs scripts with many command lines, each in a fork; a helper of tests.

  python tests/forked_commands.py

Each line of the input is {'script': path, 'cases': [...]}, and is answered by a
line of JSON: [{'code', 'stdout', 'stderr'}, ...]. So the stack is imported once
for the command lines of all tests. A case is {'argv': [...], 'cwd': directory,
'mode': one of the below}.

Modes: 'run' changes nothing; 'resolve' prints the resolved config, engine and
run directory as JSON where the program would start; 'disk_full' and
'read_only' have the disk look so; 'no_start' fails loudly if a program starts.
"""

import collections
import json
import os
import pathlib
import runpy
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


def main() -> None:
  for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(_answers(asked['script'], asked['cases'])), flush=True)


def _answers(script: str, cases: list) -> list:
  # What the script imports, once for all.
  runpy.run_path(script, run_name='imported')
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
        os._exit(_child(script, case))
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
  _change(case.get('mode', 'run'))
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
  from launch import engines
  from launch import session

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
