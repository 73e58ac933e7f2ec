"""The lock, what is installed of it, and what is broken then."""

import os
import re
import subprocess
import sys

import pytest

from tests.requirements import scripts


def test_every_locked_package_has_one_version_and_a_hash(environment):
  entries = environment.read_pins(scripts.REQUIREMENTS / 'lock.txt')
  assert len(entries) > 90
  for name, text in entries.items():
    first, *rest = text.splitlines()
    assert re.match(re.escape(name) + r'==[^\s;]+ ', first), first
    assert rest and all('--hash=sha256:' in line for line in rest), name


def test_no_list_of_pins_names_an_index():
  for path in scripts.REQUIREMENTS.rglob('*.txt'):
    text = path.read_text()
    assert '://' not in text and '--' not in text.replace('--hash', ''), path


def test_what_is_asked_for_is_locked(environment):
  entries = environment.read_pins(scripts.REQUIREMENTS / 'lock.txt')
  for line in (
    (scripts.REQUIREMENTS / 'requirements.in').read_text().splitlines()
  ):
    if line and not line.startswith('#'):
      name = re.split(r'[\[=<>]', line)[0].replace('_', '-').lower()
      assert name in entries, line


def test_what_builds_comes_first_and_every_file_is_checked(
  environment, venv, tmp_path
):
  calls = tmp_path / 'calls'
  scripts.program(venv.bin, f'echo "$*" >> {calls}')
  environment.install(venv)
  first, *rest, last = calls.read_text().splitlines()
  pins = environment.read_pins(venv.pins)
  asked = []
  for line in (first, *rest):
    assert '--no-deps --require-hashes --no-build-isolation' in line
    with open(line.split()[-1]) as f:
      asked += re.findall(r'^([\w.-]+)==', f.read(), re.M)
  assert tuple(asked[:2]) == environment.BUILDERS
  assert sorted([*asked, environment.LAUNCHPAD]) == sorted(pins)
  assert last == f'-I {environment.SETUP}'


@pytest.mark.parametrize('works', [True, False])
def test_uv_installs_where_it_is_and_pip_where_it_fails(
  environment, venv, tmp_path, monkeypatch, works
):
  calls = tmp_path / 'calls'
  scripts.program(
    tmp_path / 'tools' / 'uv',
    f'echo "uv $*" >> {calls}',
    'exit 0' if works else 'exit 1',
  )
  scripts.program(venv.bin, f'echo "pip $*" >> {calls}')
  monkeypatch.setenv('PATH', f'{tmp_path / "tools"}:{os.environ["PATH"]}')
  environment.install(venv)
  *lines, last = calls.read_text().splitlines()
  assert all('--no-deps --require-hashes' in line for line in lines)
  tools = [line.split()[0] for line in lines]
  assert tools[:3] == (['uv', 'uv'] if works else ['uv', 'pip', 'pip'])
  assert set(tools[3:]) <= {'pip'} and works == (len(tools) == 2)
  assert last == f'pip -I {environment.SETUP}'


@pytest.mark.parametrize('name', ['', 'courier'])
def test_launchpad_is_whole_where_courier_is_measured(
  environment, monkeypatch, tmp_path, name
):
  commands = []
  monkeypatch.setattr(
    environment, 'run', lambda command, *unused: commands.append(command)
  )
  place = environment.Environment(name, '', str(tmp_path))
  os.makedirs(place.directory)
  environment.install(place)
  pins = ''.join(open(c[-1]).read() for c in commands if '-r' in c)
  whole = name == 'courier'
  assert (environment.LAUNCHPAD in pins) == whole
  assert (commands[-1][-1] == environment.SETUP) != whole
  # The only one that its compiled half was made for.
  assert not whole or place.series == ('3.10',)


def test_a_clone_has_the_command(environment, venv):
  scripts.program(venv.bin, f'exec {sys.executable} "$@"')
  environment.link(venv)
  site = venv.site
  assert (site / 'murmuration.pth').read_text() == f'{venv.root}\n'
  done = subprocess.run(
    [venv.bin.with_name('murmuration'), '--help'],
    env={**os.environ, 'PYTHONPATH': str(scripts.REQUIREMENTS.parent)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert 'murmuration evaluate' in done.stdout


def test_extras_have_the_command_and_see_the_stack(
  environment, venv, monkeypatch
):
  extras = environment.Environment('extras', root=venv.root)
  directory = extras.directory
  scripts.program(directory / 'bin' / 'python', 'true')
  (directory / 'lib' / 'python3.11' / 'site-packages').mkdir(parents=True)
  stamp = extras.wanted()
  del stamp['script']
  extras.write_stamp(stamp)
  monkeypatch.setattr(environment, 'install', lambda *unused: None)
  environment.make(extras)
  assert extras.needed() == 'nothing'
  command = (directory / 'bin' / 'murmuration').read_text()
  assert f'exec\' "{extras.bin}"' in command
  seen = (extras.site / 'murmuration.pth').read_text()
  assert seen.splitlines() == [str(venv.site), venv.root]


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


@pytest.mark.parametrize(
  ('program', 'said'),
  [
    (f'exec {sys.executable} "$@"', "No module named 'no_such_module'"),
    ('echo $* >&2; kill -SEGV $$', 'ended with code -11'),
  ],
)
def test_what_cannot_be_imported_is_said_and_a_crash_too(
  environment, venv, monkeypatch, program, said
):
  scripts.program(venv.bin, program)
  monkeypatch.setattr(environment, 'IMPORTS', ['json', 'no_such_module'])
  assert said in environment.broken(venv)
  scripts.program(venv.bin, f'exec {sys.executable} "$@"')
  monkeypatch.setattr(environment, 'IMPORTS', ['json', 'os'])
  assert environment.broken(venv) == ''


def test_an_environment_that_cannot_be_imported_is_not_finished(
  environment, unfinished, monkeypatch
):
  monkeypatch.setattr(environment, 'broken', lambda *unused: 'No reverb.')
  with pytest.raises(environment.machine.SetupError, match='No reverb'):
    environment.make(unfinished)
  assert unfinished.needed() == 'finish'
