"""The set-up finds CPython 3.10, repairs what is broken, and says why not."""

import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[1] / 'requirements'


@pytest.fixture
def load(monkeypatch):
  """load(name): a script of requirements/, as it sees its neighbours."""
  monkeypatch.syspath_prepend(str(REQUIREMENTS))
  names = ('interpreters', 'environment', 'doctor')
  yield importlib.import_module
  for name in names:
    sys.modules.pop(name, None)


@pytest.fixture
def interpreters(load):
  return load('interpreters')


@pytest.fixture
def environment(load):
  return load('environment')


@pytest.fixture
def doctor(load):
  return load('doctor')


def interpreter(path, version=(3, 10, 13), kind='CPython', makes_venv=True):
  """Writes a program that answers as such an interpreter would."""
  answer = json.dumps(
    {
      'executable': str(path),
      'version': version,
      'implementation': kind,
      'makes_venv': makes_venv,
    }
  )
  return program(path, f"echo '{answer}'")


def program(path, *lines):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('\n'.join(['#!/bin/sh', *lines]) + '\n')
  path.chmod(0o755)
  return str(path)


@pytest.fixture
def shell(tmp_path, interpreters, monkeypatch):
  """The variables of a machine whose own Python is 3.11."""
  own = interpreter(tmp_path / 'bin' / 'python3', (3, 11, 7))
  monkeypatch.setattr(sys, 'executable', own)
  return {'HOME': str(tmp_path / 'home'), 'PATH': str(tmp_path / 'bin')}


# --- Finding CPython 3.10 -----------------------------------------------------


def test_python310_on_the_path_is_found(tmp_path, interpreters, shell):
  path = interpreter(tmp_path / 'bin' / 'python3.10')
  assert interpreters.find(shell) == path


def test_a_pyenv_shim_that_leads_nowhere_is_passed_over(
  tmp_path, interpreters, shell
):
  program(tmp_path / 'bin' / 'python3.10', 'echo not found >&2', 'exit 127')
  versions = tmp_path / 'pyenv' / 'versions'
  path = interpreter(versions / '3.10.13' / 'bin' / 'python3.10')
  shell['PYENV_ROOT'] = str(tmp_path / 'pyenv')
  assert interpreters.find(shell) == path


def test_pyenv_is_looked_for_in_the_home_directory_too(
  tmp_path, interpreters, shell
):
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  path = interpreter(versions / '3.10.4' / 'bin' / 'python3.10')
  assert interpreters.find(shell) == path


def test_the_newest_of_several_is_taken_by_number_not_by_letter(
  tmp_path, interpreters, shell
):
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  for name in ('3.10.9', '3.10.13', '3.10.2', '3.11.1'):
    interpreter(versions / name / 'bin' / 'python3.10')
  assert '3.10.13' in interpreters.find(shell)


def test_an_interpreter_of_uv_is_found(tmp_path, interpreters, shell):
  name = 'cpython-3.10.16-linux-x86_64-gnu'
  data = tmp_path / 'home' / '.local' / 'share' / 'uv' / 'python'
  path = interpreter(data / name / 'bin' / 'python3.10')
  assert interpreters.find(shell) == path


def test_another_version_behind_the_name_is_refused(
  tmp_path, interpreters, shell
):
  interpreter(tmp_path / 'bin' / 'python3.10', (3, 12, 1))
  with pytest.raises(interpreters.NoInterpreter, match=r'is Python 3\.12\.1'):
    interpreters.find(shell)


def test_pypy_is_refused(tmp_path, interpreters, shell):
  interpreter(tmp_path / 'bin' / 'python3.10', kind='PyPy')
  with pytest.raises(interpreters.NoInterpreter, match='is PyPy, not CPython'):
    interpreters.find(shell)


def test_an_interpreter_without_venv_yields_to_one_with_it(
  tmp_path, interpreters, shell
):
  interpreter(tmp_path / 'bin' / 'python3.10', makes_venv=False)
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  path = interpreter(versions / '3.10.4' / 'bin' / 'python3.10')
  assert interpreters.find(shell) == path


def test_without_any_the_message_says_ways_to_get_one(interpreters, shell):
  with pytest.raises(interpreters.NoInterpreter) as error:
    interpreters.find(shell)
  for words in ('uv python install 3.10', 'pyenv install 3.10', 'apt install'):
    assert words in str(error.value)
  assert 'bin/python3 is Python 3.11.7' in str(error.value)


def test_the_interpreter_the_user_names_is_never_passed_over(
  tmp_path, interpreters, shell
):
  interpreter(tmp_path / 'bin' / 'python3.10')
  shell['MURMURATION_PYTHON'] = str(tmp_path / 'nothing')
  with pytest.raises(interpreters.NoInterpreter, match='does not run'):
    interpreters.find(shell)


def test_the_real_interpreter_describes_itself(interpreters):
  found = interpreters.describe(sys.executable)
  assert found['version'] == list(sys.version_info[:3])
  assert interpreters.fault(found) is None


# --- What has to be done ------------------------------------------------------

WANTED = {'root': '/here', 'lock': 'a', 'script': 'b'}


@pytest.fixture
def venv(tmp_path):
  """A directory that looks like a finished environment."""
  path = tmp_path / 'venv'
  program(path / 'bin' / 'python', 'true')
  (path / 'lib' / 'python3.10' / 'site-packages').mkdir(parents=True)
  (path / 'murmuration.json').write_text(json.dumps(WANTED))
  return path


def test_a_finished_environment_is_left_alone(environment, venv):
  assert environment.needed(WANTED, str(venv)) == 'nothing'


def test_a_missing_environment_is_created(environment, tmp_path):
  assert environment.needed(WANTED, str(tmp_path / 'none')) == 'create'
  assert environment.needed(WANTED, str(tmp_path)) == 'create'  # Empty.


@pytest.mark.parametrize('change', [{'lock': 'z'}, {'root': '/there'}])
def test_another_lock_or_a_moved_checkout_means_anew(environment, venv, change):
  assert environment.needed({**WANTED, **change}, str(venv)) == 'rebuild'


def test_an_interrupted_install_is_made_anew(environment, venv):
  environment.write_stamp({'root': '/here'}, str(venv))
  assert environment.needed(WANTED, str(venv)) == 'rebuild'


def test_a_vanished_interpreter_means_anew(environment, venv):
  (venv / 'bin' / 'python').unlink()
  (venv / 'bin' / 'python').symlink_to(venv / 'gone')
  assert environment.needed(WANTED, str(venv)) == 'rebuild'


def test_interrupted_checks_are_made_again_without_installing(
  environment, venv
):
  environment.write_stamp({'root': '/here', 'lock': 'a'}, str(venv))
  assert environment.needed(WANTED, str(venv)) == 'check'


def test_an_environment_of_the_user_is_not_touched(environment, venv):
  (venv / 'murmuration.json').unlink()
  with pytest.raises(environment.SetupError, match='left alone'):
    environment.needed(WANTED, str(venv))


def test_a_full_disk_is_refused_before_anything_is_written(
  environment, monkeypatch, tmp_path
):
  monkeypatch.setattr(environment, 'NEEDED_DISK', 10**18)
  with pytest.raises(environment.SetupError, match='are free on the disk of'):
    environment.refuse_full_disk(str(tmp_path))


def test_no_interpreter_gives_exit_code_1_and_leaves_nothing_behind(tmp_path):
  copy = tmp_path / 'requirements'
  shutil.copytree(
    REQUIREMENTS, copy, ignore=shutil.ignore_patterns('__pycache__')
  )
  process = subprocess.run(
    [sys.executable, str(copy / 'environment.py')],
    env={**os.environ, 'MURMURATION_PYTHON': '/no/python'},
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1
  assert 'environment: /no/python does not run' in process.stderr
  assert 'Traceback' not in process.stderr
  assert not (tmp_path / '.venv').exists()


# --- The lock -----------------------------------------------------------------


def test_every_locked_package_has_one_version_and_a_hash(environment):
  entries = environment.read_lock()
  assert len(entries) > 100
  for name, text in entries.items():
    first, *rest = text.split('\n')
    assert re.match(re.escape(name) + r'==[^\s;]+ ', first), first
    assert rest and all('--hash=sha256:' in line for line in rest), name


def test_the_lock_names_no_index(environment):
  text = pathlib.Path(environment.LOCK).read_text()
  assert '://' not in text
  assert '--index' not in text and '--find-links' not in text


def test_what_is_asked_for_is_locked(environment):
  entries = environment.read_lock()
  asked = (REQUIREMENTS / 'requirements.in').read_text().splitlines()
  for line in asked:
    if line and not line.startswith('#'):
      name = re.split(r'[\[=<>]', line)[0].replace('_', '-').lower()
      assert name in entries, line


def test_every_package_is_dealt_to_exactly_one_pip(environment):
  names = list(environment.read_lock())
  chunks = environment.deal(names)
  assert sorted(n for chunk in chunks for n in chunk) == sorted(names)
  assert chunks[0] == ['tensorflow']  # The longest first.


@pytest.mark.parametrize('works', [True, False])
def test_uv_installs_where_it_is_and_pip_where_it_fails(
  environment, venv, tmp_path, monkeypatch, works
):
  calls = tmp_path / 'calls'
  program(
    tmp_path / 'tools' / 'uv',
    f'echo "uv $*" >> {calls}',
    'exit 0' if works else 'exit 1',
  )
  program(venv / 'bin' / 'python', f'echo "pip $*" >> {calls}')
  monkeypatch.setenv('PATH', f'{tmp_path / "tools"}:{os.environ["PATH"]}')
  environment.install(environment.read_lock(), str(venv))
  lines = calls.read_text().splitlines()
  assert all('--require-hashes' in line for line in lines)
  assert lines[0].startswith('uv pip install --python')
  assert 'requirements-builders.txt' in lines[0]
  if works:
    assert len(lines) == 2 and 'requirements-all.txt' in lines[1]
  else:
    assert all(line.startswith('pip ') for line in lines[1:])
    chunks = environment.deal(list(environment.read_lock()))
    assert len(lines) >= 1 + len(chunks)


def test_settings_that_put_packages_elsewhere_do_not_reach_pip(
  environment, monkeypatch
):
  monkeypatch.setenv('PIP_TARGET', '/elsewhere')
  monkeypatch.setenv('PIP_USER', '1')
  monkeypatch.setenv('PYTHONPATH', '/elsewhere')
  environ = environment.clean_environ()
  assert 'PIP_TARGET' not in environ and 'PYTHONPATH' not in environ
  assert environ['PIP_USER'] == '0'


# --- Imports ------------------------------------------------------------------


def test_the_link_makes_the_packages_importable_from_anywhere(
  environment, venv, tmp_path
):
  project = tmp_path / 'project'
  (project / 'agents').mkdir(parents=True)
  (project / 'agents' / '__init__.py').touch()
  environment.link_project(str(venv), str(project))
  # Where the user is, there is a directory of the same name.
  (tmp_path / 'agents').mkdir()
  site = venv / 'lib' / 'python3.10' / 'site-packages'
  code = (
    f'import site; site.addsitedir({str(site)!r}); '
    'import agents; print(agents.__file__)'
  )
  out = subprocess.check_output(
    [sys.executable, '-S', '-c', code], cwd=tmp_path, text=True
  )
  assert out.strip() == str(project / 'agents' / '__init__.py')


def test_the_check_reports_each_failure_and_survives_a_crash(environment, venv):
  python = venv / 'bin' / 'python'
  python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
  (venv / 'dies.py').write_text('import os\nos._exit(3)\n')
  (venv / 'loud.py').write_text('print("no newline at the end", end="")\n')
  names = ('json', 'loud', 'no_such_module', 'dies', 'os')
  results = environment.check(names, str(venv))
  assert [r.name for r in results] == list(names)
  errors = [r.error for r in results]
  assert errors[0] is None and errors[1] is None and errors[4] is None
  assert errors[2] == "ModuleNotFoundError: No module named 'no_such_module'"
  assert 'code 3' in errors[3]


# --- The doctor ---------------------------------------------------------------


def test_the_doctor_sees_versions_that_differ_from_the_lock(doctor):
  problems = list(
    doctor.package_problems(
      {'numpy': '1.24.4', 'ray': '2', 'rich': '3'},
      {'numpy': '2.0.0', 'rich': '3', 'dm-launchpad': '0.5.0'},
    )
  )
  text = '\n'.join(p.what for p in problems)
  assert 'numpy 2.0.0 is installed; 1.24.4 is locked' in text
  assert 'not installed: ray' in text
  assert 'dm-launchpad is installed over dm-launchpad-nightly' in text
  assert len(problems) == 3 and all(p.fix for p in problems)


def test_the_doctor_finds_no_fault_with_the_locked_versions(doctor):
  locked = doctor.locked_versions()
  assert locked['numpy'].startswith('1.')
  assert list(doctor.package_problems(locked, locked)) == []


@pytest.mark.parametrize(
  ('environ', 'words'),
  [
    ({'PYTHONPATH': '/x'}, 'comes before the locked packages'),
    ({'https_proxy': 'proxy:1'}, 'asks the proxy for localhost'),
  ],
)
def test_the_doctor_sees_variables_that_break_the_stack(doctor, environ, words):
  assert any(words in p.what for p in doctor.shell_problems(environ))


def test_the_doctor_accepts_a_proxy_that_spares_localhost(doctor):
  environ = {'https_proxy': 'proxy:1', 'no_proxy': 'localhost'}
  assert not [p for p in doctor.shell_problems(environ) if 'proxy' in p.what]


def test_the_doctor_says_how_to_make_what_is_not_there(doctor, tmp_path):
  problem = doctor.state_problem(str(tmp_path / 'none'))
  assert problem.fix == 'make environment'


def test_the_doctor_sees_a_link_to_another_checkout(doctor, environment, venv):
  environment.link_project(str(venv), '/here')
  assert doctor.link_problem(str(venv), '/here') is None
  assert 'leads to /here' in doctor.link_problem(str(venv), '/there').what
