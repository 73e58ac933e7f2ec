"""The set-up finds a CPython, or says why not."""

import os
import sys

import pytest

from tests.requirements import scripts

STACK = ('3.11', '3.10')


def test_the_preferred_version_is_taken_before_the_nearer_one(
  tmp_path, environment, shell
):
  scripts.interpreter(tmp_path / 'bin' / 'python3.10', '3.10')
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  path = scripts.interpreter(versions / '3.11.4' / 'bin' / 'python3.11', '3.11')
  assert environment.machine.find(STACK, environ=shell) == path


def test_the_other_version_will_do(tmp_path, environment, shell):
  path = scripts.interpreter(tmp_path / 'bin' / 'python3.10', '3.10')
  assert environment.machine.find(STACK, environ=shell) == path


def test_a_pyenv_shim_that_leads_nowhere_is_passed_over(
  tmp_path, environment, shell
):
  scripts.program(
    tmp_path / 'bin' / 'python3.10', 'echo not found >&2', 'exit 127'
  )
  versions = tmp_path / 'pyenv' / 'versions'
  path = scripts.interpreter(
    versions / '3.10.13' / 'bin' / 'python3.10', '3.10'
  )
  shell['PYENV_ROOT'] = str(tmp_path / 'pyenv')
  assert environment.machine.find(STACK, environ=shell) == path


def test_the_newest_of_several_is_taken_by_number_not_by_letter(
  tmp_path, environment, shell
):
  for name in ('3.11.9', '3.11.13', '3.11.2'):
    directory = f'cpython-{name}-linux-x86_64-gnu'
    where = tmp_path / 'home' / '.local' / 'share' / 'uv' / 'python' / directory
    scripts.interpreter(where / 'bin' / 'python3.11', '3.11')
  assert '3.11.13' in environment.machine.find(STACK, environ=shell)


@pytest.mark.parametrize(
  ('version', 'kind', 'words'),
  [
    ('3.12', 'CPython', r'is CPython 3\.12'),
    ('3.11', 'PyPy', r'is PyPy 3\.11'),
  ],
)
def test_another_interpreter_behind_the_name_is_refused(
  tmp_path, environment, shell, version, kind, words
):
  scripts.interpreter(tmp_path / 'bin' / 'python3.11', version, kind)
  with pytest.raises(environment.machine.SetupError, match=words):
    environment.machine.find(STACK, environ=shell)


def test_without_any_the_message_says_what_was_tried_and_ways_to_get_one(
  tmp_path, environment, shell
):
  broken = "ModuleNotFoundError: No module named 'ensurepip'"
  scripts.program(
    tmp_path / 'bin' / 'python3.11', f'echo "{broken}" >&2', 'exit 1'
  )
  with pytest.raises(environment.machine.SetupError) as error:
    environment.machine.find(STACK, environ=shell)
  for words in (
    'uv python install 3.11',
    'pyenv install 3.11',
    'apt install python3.11-venv',
    'bin/python3 is CPython 3.12',
  ):
    assert words in str(error.value)


def test_a_path_that_the_user_names_is_never_passed_over(
  tmp_path, environment, shell
):
  scripts.interpreter(tmp_path / 'bin' / 'python3.11', '3.11')
  named = str(tmp_path / 'nothing')
  with pytest.raises(
    environment.machine.SetupError, match='nothing does not run'
  ):
    environment.machine.find(STACK, named, shell)


def test_a_name_that_the_user_gives_is_looked_for(tmp_path, environment, shell):
  scripts.interpreter(tmp_path / 'bin' / 'python3.11', '3.11')
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  path = scripts.interpreter(
    versions / '3.10.13' / 'bin' / 'python3.10', '3.10'
  )
  assert environment.machine.find(STACK, 'python3.10', shell) == path


def test_the_interpreter_of_an_environment_is_the_one_it_was_made_with(
  environment,
):
  running = '.'.join(map(str, sys.version_info[:2]))
  found, reason = environment.machine.examine(sys.executable, [running])
  assert reason == ''
  assert not found.startswith(sys.prefix) or sys.prefix == sys.base_prefix


def test_one_interpreter_by_name_and_by_path_has_one_environment(
  tmp_path, environment, venv, shell, monkeypatch
):
  path = scripts.interpreter(tmp_path / 'bin' / 'python3.10', '3.10')
  other = scripts.interpreter(tmp_path / 'other' / 'python3.10', '3.10')
  monkeypatch.setenv('PATH', shell['PATH'])

  def named(python):
    return environment.Environment('', python, venv.root)

  made = named('python3.10')
  venv.directory.rename(made.directory)
  # As an environment does, it says what it was made with.
  scripts.program(made.bin, f'echo {path}', 'echo CPython 3.10')
  made.write_stamp(made.wanted())
  os.symlink(tmp_path / 'bin', tmp_path / 'link')
  for same in ('python3.10', path, str(tmp_path / 'link' / 'python3.10')):
    assert named(same).needed() == 'nothing', same
  assert named(other).directory == made.directory
  for another in (other, '/no/python3.10'):
    assert named(another).needed() == 'create', another
