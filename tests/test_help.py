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


@pytest.mark.parametrize('script', _scripts('examples', 'requirements'))
def test_a_script_that_is_run_as_a_file_finds_its_modules(tmp_path, script):
  done = subprocess.run(
    [sys.executable, str(ROOT / script), '--help'],
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
  'module',
  [f'murmuration.{name}' for name in ('play', 'export', 'replay.export')]
  + [f'murmuration.{name}' for name in ('replay.inspect', 'run_records.follow')]
  + ['murmuration'],
)
def test_a_module_that_is_run_says_how_it_is_used(tmp_path, module):
  done = subprocess.run(
    [sys.executable, '-m', module, '--help'],
    cwd=tmp_path,
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
