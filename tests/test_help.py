"""Every script of the project says what it does when asked with --help."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def _scripts(*packages):
  return sorted(
    str(path.relative_to(ROOT))
    for package in packages
    for path in (ROOT / package).rglob('*.py')
    if "__name__ == '__main__'" in path.read_text()
  )


MODULES = (
  'play',
  'export',
  'replay.export',
  'replay.inspect',
  'run_records.follow',
)


@pytest.mark.parametrize(
  'words',
  [
    *([str(ROOT / path)] for path in _scripts('examples', 'requirements')),
    *(['-m', f'murmuration.{name}'] for name in MODULES),
    ['-m', 'murmuration'],
  ],
)
def test_scripts_and_modules_that_are_run_say_how_they_are_used(
  tmp_path, words
):
  done = subprocess.run(
    [sys.executable, *words, '--help'],
    cwd=tmp_path,
    # Nothing that a file would find only here.
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 0 and done.stderr == ''
  assert done.stdout.startswith('usage: ')
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  'script',
  [
    *_scripts('launch', 'studies', 'tests/faults'),
    'tests/benchmarks/peers/sb3_sac_study.py',
  ],
)
def test_help_begins_with_usage_and_does_nothing_else(
  run_commands, tmp_path, script
):
  cases = [{'argv': ['--help'], 'cwd': str(tmp_path), 'mode': 'no_start'}]
  (answer,) = run_commands(cases, script=ROOT / script)
  assert answer['code'] == 0 and answer['stderr'] == ''
  assert answer['stdout'].startswith('usage: ')
  assert 'show this help message' in answer['stdout']
  assert list(tmp_path.iterdir()) == []
