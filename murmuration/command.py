"""The command `murmuration`: one word for each of the project's commands.

murmuration run impala:cartpole        train; --help has the flags
murmuration evaluate runs/NAME         play the best policy, and film it
murmuration play impala:cartpole       play a policy of the zoo
murmuration export runs/NAME           a policy to take home
murmuration inspect runs/NAME          look into its replay
murmuration sweep ppo gamma=0.9,0.99   try settings, several seeds each
murmuration dataset runs/NAME out/     its replay as arrays, and for Minari
murmuration sink runs/NAME --to=wandb  its numbers to W&B or MLflow
murmuration doctor                     versions, and what is wrong
murmuration setup                      once, after pip install of the wheel
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib.metadata
import os
import pathlib
import platform
import re
import runpy
import shlex
import sys

from murmuration import setup

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Words to modules that are run as `python -m`.
COMMANDS = {
  'run': 'murmuration.launch.run',
  'evaluate': 'murmuration.launch.evaluate',
  'play': 'murmuration.play',
  'export': 'murmuration.export',
  'sink': 'murmuration.run_records.follow',
  'inspect': 'murmuration.replay.inspect',
  'sweep': 'murmuration.sweep',
  'dataset': 'murmuration.replay.export',
}
_DOCTOR = 'requirements/doctor.py'  # of a clone; a wheel has none
_USAGE = 2
_STACK = (
  'tensorflow-cpu', 'dm-reverb', 'dm-launchpad-nightly', 'dm-sonnet', 'dm-acme',
  'gymnasium', 'numpy', 'protobuf', 'cloudpickle',
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; returns its exit code."""
  words = list(sys.argv[1:] if argv is None else argv)
  if not words or words[0] in ('-h', '--help'):
    print(f'usage: murmuration COMMAND [ARGUMENT ...]\n\n{__doc__.strip()}')
    return 0 if words else _USAGE
  name, *rest = words
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  others = {'doctor': _doctor, 'setup': setup.main}
  sys.argv = [f'murmuration {name}', *rest]
  from murmuration.run_records import commands
  from murmuration.run_records import first
  from murmuration.run_records import names

  first.streams()
  try:
    names.require('command', name, [*COMMANDS, *others])
  except ValueError as e:
    return commands.refuse(e)
  if name in others:
    return others[name]()
  try:
    if name != 'play':
      setup.require()
  except ImportError as e:
    print(f'error: {e}', file=sys.stderr)
    return 1
  try:
    runpy.run_module(COMMANDS[name], run_name='__main__')
  except SystemExit as e:
    return e.code if isinstance(e.code, int) else int(e.code is not None)
  return 0


def _doctor() -> int:
  script = ROOT / _DOCTOR
  if script.exists():
    os.execv(sys.executable, [sys.executable, str(script)])
  if sys.argv[1:]:
    print(
      'error: murmuration doctor takes no arguments where the wheel is '
      f'installed; got {" ".join(sys.argv[1:])}.',
      file=sys.stderr,
    )
    return _USAGE
  print(f'python {platform.python_version()}')
  missing = []
  for package in _STACK:
    try:
      print(f'  {package:24s} {importlib.metadata.version(package)}')
    except importlib.metadata.PackageNotFoundError:
      missing.append(package)
  if missing:
    by_pip = [name for name in missing if name not in setup.PINS]
    # protobuf is of a version that TensorFlow takes, and comes with it.
    names = [{'protobuf': 'tensorflow-cpu'}.get(name, name) for name in by_pip]
    # As the wheel asks for them: the newest do not work together.
    asked = [
      shlex.quote(line)
      for line in importlib.metadata.requires('murmuration') or ()
      if re.split(r'[^\w.-]', line)[0] in names
    ]
    fix = f'pip install {" ".join(asked)}' if asked else 'murmuration setup'
    print(
      f'error: {", ".join(missing)} not installed.\n  fix: {fix}',
      file=sys.stderr,
    )
  return int(bool(missing))


if __name__ == '__main__':
  sys.exit(main())
