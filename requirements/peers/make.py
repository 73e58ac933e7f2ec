"""Makes the environment of a peer that cannot share ours.

    python requirements/peers/make.py sb3
    python requirements/peers/make.py sbx
    python requirements/peers/make.py sample_factory
    python requirements/peers/make.py evotorch

The benchmarks that compare with these frameworks need it, nothing else does.
It goes to .peers/NAME and holds what requirements/peers/NAME.txt pins; pip
looks wherever it is configured to. Exit code 2: something is missing, and the
message says what. Standard library only.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = ROOT / '.peers'
STAMP = 'installed.txt'  # the requirements that are in, written last
sys.path.append(str(HERE.parent))

import environment  # noqa: E402
import interpreters  # noqa: E402

# The pins were resolved for it, and PyTorch's file may be for one version only.
SERIES = '3.11'


class Missing(Exception):
  """The environment cannot be made; the message says what is missing."""


def names() -> list[str]:
  """The peers with an environment of their own."""
  return sorted(path.stem for path in HERE.glob('*.txt'))


def python_of(name: str) -> pathlib.Path:
  return PEERS / name / 'bin' / 'python'


def fault(name: str) -> str | None:
  """Why the environment of a peer cannot be used, or None if it can."""
  what = f'The optional environment .peers/{name}'
  how = f'python requirements/peers/make.py {name}'
  stamp = PEERS / name / STAMP
  if not (stamp.exists() and python_of(name).exists()):
    return f'{what} is not there: {how} makes it.'
  if stamp.read_text() != (HERE / f'{name}.txt').read_text():
    return (
      f'{what} is not what requirements/peers/{name}.txt says: {how} makes it '
      'again.'
    )
  return None


def make(name: str, python: str | None = None) -> None:
  """Makes the environment of a peer, or leaves it if it is right.

  Raises:
    Missing: no interpreter, or pip did not find or install a package.
  """
  if fault(name) is None:
    print(f'.peers/{name} is up to date')
    return
  try:
    interpreter = interpreters.find(
      series=SERIES,
      named=python,
      how=f'python requirements/peers/make.py {name} '
      f'--python path/to/python{SERIES}',
    )
  except interpreters.NoInterpreter as e:
    raise Missing(str(e)) from e
  directory = PEERS / name
  shutil.rmtree(directory, ignore_errors=True)
  directory.mkdir(parents=True)
  (PEERS / '.gitignore').write_text('*\n')
  requirements = HERE / f'{name}.txt'
  print(f'making .peers/{name} with {interpreter}', flush=True)
  log = directory / 'install.log'
  pip = [str(python_of(name)), '-I', '-m', 'pip', 'install']
  for command, complaint in (
    (
      [interpreter, '-I', '-m', 'venv', str(directory)],
      'the module venv failed',
    ),
    (
      [*pip, '--progress-bar', 'off', '-r', str(requirements)],
      f'pip could not install requirements/peers/{name}.txt. A package that is '
      'not found needs an index that has it, and a network that reaches it '
      '(pip config, PIP_INDEX_URL)',
    ),
  ):
    if not environment.run(command, log):
      raise Missing(f'{complaint}. The end of {log}:\n{environment.tail(log)}')
  # Last of all: what has no stamp is unfinished.
  (directory / STAMP).write_text(requirements.read_text())
  print(f'ready: .peers/{name}')


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('name', choices=names())
  parser.add_argument('--python', help='path of a CPython 3.11')
  args = parser.parse_args()
  try:
    make(args.name, args.python)
  except Missing as missing:
    print(f'peers: {missing}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
