"""The set-up finds a CPython, repairs what is broken, or says why not."""

import errno
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[1] / 'requirements'
STACK = ('3.11', '3.10')


@pytest.fixture
def environment(monkeypatch):
  monkeypatch.syspath_prepend(str(REQUIREMENTS))
  yield importlib.import_module('environment')
  for name in ('environment', 'machine', 'doctor'):
    sys.modules.pop(name, None)


@pytest.fixture
def doctor(environment):
  return importlib.import_module('doctor')


def program(path, *lines):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('\n'.join(['#!/bin/sh', *lines]) + '\n')
  path.chmod(0o755)
  return str(path)


def interpreter(path, version, kind='CPython'):
  """Writes a program that answers as such an interpreter would."""
  return program(path, f'echo {path}', f'echo {kind} {version}')


# --- Finding a CPython --------------------------------------------------------


@pytest.fixture
def shell(tmp_path, environment, monkeypatch):
  """The variables of a machine whose own Python is 3.12."""
  own = interpreter(tmp_path / 'bin' / 'python3', '3.12')
  monkeypatch.setattr(sys, 'executable', own)
  return {'HOME': str(tmp_path / 'home'), 'PATH': str(tmp_path / 'bin')}


def test_the_preferred_version_is_taken_before_the_nearer_one(
  tmp_path, environment, shell
):
  interpreter(tmp_path / 'bin' / 'python3.10', '3.10')
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  path = interpreter(versions / '3.11.4' / 'bin' / 'python3.11', '3.11')
  assert environment.machine.find(STACK, environ=shell) == path


def test_the_other_version_will_do(tmp_path, environment, shell):
  path = interpreter(tmp_path / 'bin' / 'python3.10', '3.10')
  assert environment.machine.find(STACK, environ=shell) == path


def test_a_pyenv_shim_that_leads_nowhere_is_passed_over(
  tmp_path, environment, shell
):
  program(tmp_path / 'bin' / 'python3.10', 'echo not found >&2', 'exit 127')
  versions = tmp_path / 'pyenv' / 'versions'
  path = interpreter(versions / '3.10.13' / 'bin' / 'python3.10', '3.10')
  shell['PYENV_ROOT'] = str(tmp_path / 'pyenv')
  assert environment.machine.find(STACK, environ=shell) == path


def test_the_newest_of_several_is_taken_by_number_not_by_letter(
  tmp_path, environment, shell
):
  for name in ('3.11.9', '3.11.13', '3.11.2'):
    directory = f'cpython-{name}-linux-x86_64-gnu'
    where = tmp_path / 'home' / '.local' / 'share' / 'uv' / 'python' / directory
    interpreter(where / 'bin' / 'python3.11', '3.11')
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
  interpreter(tmp_path / 'bin' / 'python3.11', version, kind)
  with pytest.raises(environment.machine.SetupError, match=words):
    environment.machine.find(STACK, environ=shell)


def test_without_any_the_message_says_what_was_tried_and_ways_to_get_one(
  tmp_path, environment, shell
):
  broken = "ModuleNotFoundError: No module named 'ensurepip'"
  program(tmp_path / 'bin' / 'python3.11', f'echo "{broken}" >&2', 'exit 1')
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
  interpreter(tmp_path / 'bin' / 'python3.11', '3.11')
  named = str(tmp_path / 'nothing')
  with pytest.raises(
    environment.machine.SetupError, match='nothing does not run'
  ):
    environment.machine.find(STACK, named, shell)


def test_a_name_that_the_user_gives_is_looked_for(tmp_path, environment, shell):
  interpreter(tmp_path / 'bin' / 'python3.11', '3.11')
  versions = tmp_path / 'home' / '.pyenv' / 'versions'
  path = interpreter(versions / '3.10.13' / 'bin' / 'python3.10', '3.10')
  assert environment.machine.find(STACK, 'python3.10', shell) == path


def test_the_interpreter_of_an_environment_is_the_one_it_was_made_with(
  environment,
):
  running = '.'.join(map(str, sys.version_info[:2]))
  found, reason = environment.machine.examine(sys.executable, [running])
  assert reason == ''
  assert not found.startswith(sys.prefix) or sys.prefix == sys.base_prefix


# --- What has to be done ------------------------------------------------------


@pytest.fixture
def venv(environment, tmp_path):
  """An environment that looks finished."""
  venv = environment.Environment('', root=str(tmp_path / 'checkout'))
  directory = pathlib.Path(venv.directory)
  program(directory / 'bin' / 'python', 'true')
  (directory / 'lib' / 'python3.11' / 'site-packages').mkdir(parents=True)
  venv.write_stamp(venv.wanted())
  return venv


def test_a_finished_environment_is_left_alone(environment, venv):
  assert venv.needed() == 'nothing'
  environment.make(venv)  # and needs no network


def test_a_missing_environment_is_created(environment, tmp_path):
  venv = environment.Environment('', root=str(tmp_path))
  assert venv.needed() == 'create'
  os.makedirs(venv.directory)
  assert venv.needed() == 'create'


@pytest.mark.parametrize('change', [{'pins': 'z'}, {'root': '/there'}])
def test_other_pins_or_a_moved_checkout_mean_anew(venv, change):
  venv.write_stamp({**venv.wanted(), **change})
  assert venv.needed() == 'create'


def test_a_vanished_interpreter_means_anew(venv):
  os.unlink(venv.bin)
  os.symlink('/no/python', venv.bin)
  assert venv.needed() == 'create'


def test_an_interrupted_install_is_taken_up(venv):
  stamp = venv.wanted()
  del stamp['script']
  venv.write_stamp(stamp)
  assert venv.needed() == 'finish'


@pytest.fixture
def unfinished(environment, venv, monkeypatch):
  """The same, without its last steps, which do nothing here."""
  stamp = venv.wanted()
  del stamp['script']
  venv.write_stamp(stamp)
  for name in ('install', 'link'):
    monkeypatch.setattr(environment, name, lambda *unused: None)
  monkeypatch.setattr(environment, 'check', lambda *unused: [])
  return venv


@pytest.mark.parametrize('writable', [True, False])
def test_on_nfs_the_lock_is_of_a_file_that_can_be_written(
  environment, unfinished, monkeypatch, capsys, writable
):
  def opened(path, mode='r', **more):
    if mode == 'r+' and not writable:
      raise PermissionError(errno.EACCES, 'Permission denied', path)
    return open(path, mode, **more)

  def flock(file, operation):
    if not file.writable():
      raise OSError(errno.EBADF, 'Bad file descriptor')

  monkeypatch.setattr(environment, 'open', opened, raising=False)
  monkeypatch.setattr(environment.fcntl, 'flock', flock)
  before = pathlib.Path(unfinished.pins).read_bytes()
  environment.make(unfinished)
  assert unfinished.needed() == 'nothing'
  assert ('no lock here' in capsys.readouterr().out) is not writable
  assert pathlib.Path(unfinished.pins).read_bytes() == before


def test_another_set_up_is_waited_for(
  environment, unfinished, monkeypatch, capsys
):
  operations = []

  def flock(file, operation):
    operations.append(operation)
    if len(operations) == 1:
      raise BlockingIOError(errno.EAGAIN, 'held')

  monkeypatch.setattr(environment.fcntl, 'flock', flock)
  environment.make(unfinished)
  assert operations == [
    environment.fcntl.LOCK_EX | environment.fcntl.LOCK_NB,
    environment.fcntl.LOCK_EX,
  ]
  assert 'waiting for it' in capsys.readouterr().out


def test_a_link_that_leads_nowhere_makes_room(
  environment, tmp_path, monkeypatch
):
  venv = environment.Environment('', root=str(tmp_path))
  os.symlink(str(tmp_path / 'gone'), venv.directory)
  assert venv.needed() == 'create'
  monkeypatch.setattr(environment.machine, 'refuse', lambda root: None)
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  monkeypatch.setattr(environment, 'run', lambda *unused: None)
  environment.create(venv)
  assert os.path.isdir(venv.directory) and not os.path.islink(venv.directory)


def test_a_file_in_the_way_is_named_and_not_touched(
  environment, doctor, tmp_path, monkeypatch
):
  venv = environment.Environment('', root=str(tmp_path))
  pathlib.Path(venv.directory).write_text('mine')
  with pytest.raises(environment.machine.SetupError, match='left alone'):
    environment.make(venv)
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  assert any('left alone' in what for what, _ in doctor.examine(venv))
  assert pathlib.Path(venv.directory).read_text() == 'mine'


@pytest.mark.parametrize('name', ['', 'next'])
def test_a_directory_that_cannot_be_read_is_no_traceback(
  environment, venv, tmp_path, monkeypatch, name
):
  def refused(path):
    raise PermissionError(errno.EACCES, 'Permission denied', path)

  monkeypatch.setattr(environment.os, 'listdir', refused)
  if not name:
    with pytest.raises(environment.machine.SetupError, match='cannot read it'):
      venv.needed()
  else:
    os.makedirs(tmp_path / '.venv-next')
    venv = environment.Environment(name, root=str(tmp_path))
    assert venv.needed() == 'create'


@pytest.mark.parametrize(
  'number', [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EEXIST]
)
def test_what_the_disk_refuses_is_a_sentence_and_exit_code_1(
  environment, monkeypatch, capsys, number
):
  def make(place):
    raise OSError(number, os.strerror(number), place.stamp)

  monkeypatch.setattr(environment, 'make', make)
  monkeypatch.setattr(sys, 'argv', ['environment.py'])
  assert environment.main() == 1
  said = capsys.readouterr().err
  assert os.strerror(number) in said and 'same command again' in said


def test_an_environment_of_the_user_is_not_touched(environment, venv):
  os.unlink(venv.stamp)
  with pytest.raises(environment.machine.SetupError, match='left alone'):
    venv.needed()


def test_another_interpreter_has_a_directory_of_its_own(environment):
  venv = environment.Environment('', '/opt/bin/python3.10', '/here')
  assert venv.directory == '/here/.venv-python3.10'


def test_what_is_extra_lies_beside_its_stack_and_holds_nothing_of_it(
  environment, tmp_path, monkeypatch
):
  extras = environment.Environment('extras', 'python3.10', str(tmp_path))
  assert extras.directory == str(tmp_path / '.venv-extras-python3.10')
  assert extras.stack.directory == str(tmp_path / '.venv-python3.10')
  with pytest.raises(
    environment.machine.SetupError, match='has to be there first'
  ):
    environment.create(extras)
  twice = environment.read_pins(extras.pins).keys() & environment.read_pins(
    extras.stack.pins
  )
  assert not twice
  assert environment.Environment('site', '', '/here').stack is None


@pytest.mark.parametrize(
  ('given', 'wanted'),
  [
    (['PYTHON=python3.10'], '.venv-python3.10/bin/python -m pytest'),
    ([], '.venv/bin/python -m pytest'),
  ],
)
def test_make_takes_a_python_from_its_command_line_only(given, wanted):
  commands = subprocess.check_output(
    ['make', '--no-print-directory', '-n', 'test', *given],
    cwd=REQUIREMENTS.parent,
    env={**os.environ, 'PYTHON': '/another/python', 'MAKEFLAGS': ''},
    text=True,
  )
  assert wanted in commands
  assert ('--python=python3.10' in commands) == bool(given)


def test_make_finds_the_extras_beside_the_python_it_is_given():
  commands = subprocess.check_output(
    ['make', '--no-print-directory', '-n', 'test-extras', 'PYTHON=python3.10'],
    cwd=REQUIREMENTS.parent,
    env={**os.environ, 'MAKEFLAGS': ''},
    text=True,
  )
  assert 'environment.py extras --python=python3.10' in commands
  assert '.venv-extras-python3.10/bin/python -m pytest' in commands


def test_a_full_disk_is_refused(environment, monkeypatch):
  monkeypatch.setattr(environment.machine, 'NEEDED_DISK', 10**18)
  with pytest.raises(
    environment.machine.SetupError, match='are free on the disk of'
  ):
    environment.machine.refuse(environment.ROOT)


def test_no_interpreter_gives_exit_code_1_and_leaves_nothing_behind(tmp_path):
  copy = tmp_path / 'requirements'
  ignored = shutil.ignore_patterns('__pycache__')
  shutil.copytree(REQUIREMENTS, copy, ignore=ignored)
  process = subprocess.run(
    [sys.executable, str(copy / 'environment.py'), '--python=/no/python'],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1
  assert '/no/python does not run' in process.stderr
  assert 'Traceback' not in process.stderr
  assert [path.name for path in tmp_path.iterdir()] == ['requirements']


# --- The lock -----------------------------------------------------------------


def test_every_locked_package_has_one_version_and_a_hash(environment):
  entries = environment.read_pins(str(REQUIREMENTS / 'lock.txt'))
  assert len(entries) > 90
  for name, text in entries.items():
    first, *rest = text.splitlines()
    assert re.match(re.escape(name) + r'==[^\s;]+ ', first), first
    assert rest and all('--hash=sha256:' in line for line in rest), name


def test_no_list_of_pins_names_an_index():
  for path in REQUIREMENTS.rglob('*.txt'):
    text = path.read_text()
    assert '://' not in text and '--' not in text.replace('--hash', ''), path


def test_what_is_asked_for_is_locked(environment):
  entries = environment.read_pins(str(REQUIREMENTS / 'lock.txt'))
  for line in (REQUIREMENTS / 'requirements.in').read_text().splitlines():
    if line and not line.startswith('#'):
      name = re.split(r'[\[=<>]', line)[0].replace('_', '-').lower()
      assert name in entries, line


@pytest.mark.parametrize('works', [True, False])
def test_uv_installs_where_it_is_and_pip_where_it_fails(
  environment, venv, tmp_path, monkeypatch, works
):
  calls = tmp_path / 'calls'
  says = f'echo "uv $*" >> {calls}'
  program(tmp_path / 'tools' / 'uv', says, 'exit 0' if works else 'exit 1')
  program(pathlib.Path(venv.bin), f'echo "pip $*" >> {calls}')
  monkeypatch.setenv('PATH', f'{tmp_path / "tools"}:{os.environ["PATH"]}')
  monkeypatch.setattr(environment, 'install_launchpad', lambda *args: None)
  environment.install(venv)
  lines = calls.read_text().splitlines()
  assert all('--no-deps --require-hashes' in line for line in lines)
  tools = [line.split()[0] for line in lines]
  # pip has its part of the packages for each core, behind what builds them.
  assert tools[:3] == (['uv', 'uv'] if works else ['uv', 'pip', 'pip'])
  assert set(tools[3:]) <= {'pip'} and works == (len(tools) == 2)


@pytest.mark.parametrize('name', ['', 'courier'])
def test_launchpad_is_whole_where_courier_is_measured(
  environment, monkeypatch, tmp_path, name
):
  installed, halves = [], []
  monkeypatch.setattr(
    environment, 'install_with', lambda tool, to, pins: installed.extend(pins)
  )
  monkeypatch.setattr(environment, 'install_launchpad', halves.append)
  place = environment.Environment(name, '', str(tmp_path))
  environment.install(place)
  whole = name == 'courier'
  assert (environment.LAUNCHPAD in installed) == whole
  assert halves == ([] if whole else [place])
  # The only one that its compiled half was made for.
  assert not whole or place.series == ('3.10',)


def test_a_clone_has_the_command(environment, venv):
  program(pathlib.Path(venv.bin), f'exec {sys.executable} "$@"')
  environment.link(venv)
  site = pathlib.Path(venv.site)
  assert (site / 'murmuration.pth').read_text() == f'{venv.root}\n'
  done = subprocess.run(
    [pathlib.Path(venv.bin).with_name('murmuration'), '--help'],
    env={**os.environ, 'PYTHONPATH': str(REQUIREMENTS.parent)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert 'murmuration evaluate' in done.stdout


def test_a_failure_says_the_end_of_the_log(environment, venv):
  with pytest.raises(environment.machine.SetupError) as error:
    environment.run(['sh', '-c', 'echo no space; exit 1'], venv, 'No luck.')
  assert str(error.value).startswith('No luck. The end of')
  assert 'no space' in str(error.value)


def test_settings_that_put_packages_elsewhere_do_not_reach_pip(
  environment, monkeypatch
):
  for name in ('PIP_TARGET', 'PIP_USER', 'PYTHONPATH'):
    monkeypatch.setenv(name, '/elsewhere')
  environ = environment.clean_environ()
  assert 'PIP_TARGET' not in environ and 'PYTHONPATH' not in environ
  assert environ['PIP_USER'] == '0'


def test_the_check_reports_failures_and_a_crash(environment, venv):
  program(pathlib.Path(venv.bin), f'exec {sys.executable} "$@"')
  directory = pathlib.Path(venv.directory)
  (directory / 'dies.py').write_text('import os\nos._exit(3)\n')
  (directory / 'loud.py').write_text('print("no newline at the end", end="")')
  names = ['json', 'loud', 'no_such_module', 'dies', 'os']
  results = {n: error for n, _, error in environment.check(venv, names)}
  assert list(results) == names[:4]
  assert results['json'] == results['loud'] == ''
  wanted = "ModuleNotFoundError: No module named 'no_such_module'"
  assert results['no_such_module'] == wanted
  assert 'code 3' in results['dies']


# --- The doctor ---------------------------------------------------------------


def test_the_doctor_sees_versions_that_differ_from_the_lock(doctor):
  locked = {'numpy': '1.26.4', 'gym': '2', 'rich': '3'}
  installed = {'numpy': '2.0.0', 'rich': '3', 'dm-launchpad': '0.5.0'}
  problems = list(doctor.package_problems(locked, installed))
  text = '\n'.join(what for what, _ in problems)
  assert 'numpy: 2.0.0 is installed; 1.26.4 is locked' in text
  assert 'gym: nothing is installed' in text
  assert 'dm-launchpad is installed over dm-launchpad-nightly' in text
  assert len(problems) == 3 and all(fix for _, fix in problems)
  assert list(doctor.package_problems(locked, locked)) == []


@pytest.mark.parametrize(
  ('environ', 'words'),
  [
    ({'PYTHONPATH': '/x'}, 'PYTHONPATH=/x hides'),
    ({'https_proxy': 'proxy:1'}, 'asks the proxy for localhost'),
  ],
)
def test_the_doctor_sees_variables_that_break_the_stack(doctor, environ, words):
  assert any(words in what for what, _ in doctor.shell_problems(environ))


def test_the_doctor_accepts_a_proxy_that_spares_localhost(doctor):
  environ = {'https_proxy': 'proxy:1', 'no_proxy': 'localhost'}
  found = [what for what, _ in doctor.shell_problems(environ)]
  assert not [what for what in found if 'proxy' in what]


def test_the_doctor_says_how_to_make_what_is_not_there(
  doctor, environment, tmp_path
):
  venv = environment.Environment('', root=str(tmp_path))
  fixes = [fix for _, fix in doctor.examine(venv)]
  assert 'make environment' in fixes


@pytest.mark.parametrize('answer', ['exit 1', 'echo no list', None])
def test_the_doctor_sees_an_interpreter_that_does_not_run(
  doctor, environment, venv, monkeypatch, answer
):
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  if answer:
    program(pathlib.Path(venv.bin), answer)
  else:
    pathlib.Path(venv.bin).write_text('')  # and no #! line either
  found = [what for what, _ in doctor.examine(venv)]
  assert f'{venv.bin} does not run, or cannot list packages' in found
