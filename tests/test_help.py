"""Every script of the project says what it does when asked with --help."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = sorted(
  str(path.relative_to(ROOT))
  for package in ('launch', 'studies')
  for path in (ROOT / package).rglob('*.py')
  if "__name__ == '__main__'" in path.read_text()
)


@pytest.mark.parametrize('script', SCRIPTS)
def test_help_begins_with_usage_and_does_nothing_else(
  run_commands, tmp_path, script
):
  cases = [{'argv': ['--help'], 'cwd': str(tmp_path), 'mode': 'no_start'}]
  (answer,) = run_commands(cases, script=ROOT / script)
  assert answer['code'] == 0 and answer['stderr'] == ''
  assert answer['stdout'].startswith('usage: ')
  assert 'show this help message' in answer['stdout']
  assert list(tmp_path.iterdir()) == []
