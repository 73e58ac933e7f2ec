"""The set-up, with real environments of packages that are made here."""

import hashlib
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[2] / 'requirements'
PYTHON = f'python{sys.version_info[0]}.{sys.version_info[1]}'


def program(path, *lines):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('\n'.join(['#!/bin/sh', *lines]) + '\n')
  path.chmod(0o755)


class Checkout:
  """A clone with a lock of packages that lie in `index`."""

  def __init__(self, root):
    self.root, self.index = root / 'clone', root / 'index'
    self.venv, self.python = self.root / '.venv', self.root / '.venv/bin/python'
    for directory in ('murmuration', 'requirements'):
      (self.root / directory).mkdir(parents=True)
    self.index.mkdir()
    for name in ('environment.py', 'uv.txt'):
      shutil.copy(REQUIREMENTS / name, self.root / 'requirements')
    (self.root / 'murmuration' / 'courier.py').touch()
    (self.root / 'murmuration' / 'setup.py').write_text('print("Launchpad")')
    program(root / 'tools' / 'uv', f'exec {sys.executable} -m uv "$@"')
    if not shutil.which('uv', path=str(pathlib.Path(sys.executable).parent)):
      program(root / 'tools' / 'uv', f'exec {shutil.which("uv")} "$@"')
    config = root / 'pip.conf'
    config.write_text(f'[global]\nno-index = true\nfind-links = {self.index}\n')
    base = pathlib.Path(sys.base_prefix, 'bin')
    (root / 'tools' / PYTHON).symlink_to(base / PYTHON)
    self.environ = {
      'PATH': f'{root / "tools"}:/usr/bin:/bin',
      'HOME': str(root),
      'PIP_CONFIG_FILE': str(config),
    }

  def lock(self, path='lock.txt', digest='', **versions):
    """Writes a list of pins, and the packages."""
    lines = []
    for name, version in versions.items():
      wheel = self.index / f'{name}-{version}-py3-none-any.whl'
      about = f'{name}-{version}.dist-info'
      metadata = f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
      wheel_about = 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\n'
      with zipfile.ZipFile(wheel, 'w') as file:
        file.writestr(f'{name}.py', f'version = "{version}"\n')
        file.writestr(f'{about}/METADATA', metadata)
        file.writestr(f'{about}/WHEEL', wheel_about + 'Tag: py3-none-any\n')
        file.writestr(f'{about}/RECORD', '')
      found = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
      lines.append(f'{name}=={version} \\\n    --hash=sha256:{found}\n')
    (self.root / 'requirements' / path).write_text(''.join(lines))

  def start(self, *words, **variables):
    return subprocess.Popen(
      [sys.executable, 'requirements/environment.py', *words],
      cwd=self.root,
      env={**self.environ, **variables},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def make(self, *words, code=0, **variables):
    process = self.start(*words, **variables)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == code, said
    assert 'Traceback' not in said
    return said

  def imported(self, *names, venv='.venv'):
    """Versions of packages in an environment, from another directory."""
    python = self.root / venv / 'bin' / 'python'
    code = (
      'import sys\nfor name in sys.argv[1:]: print(__import__(name).version)'
    )
    said = subprocess.check_output([python, '-c', code, *names], cwd='/')
    return said.decode().split()


@pytest.fixture
def checkout(tmp_path):
  checkout = Checkout(tmp_path)
  checkout.lock(demo='1.0')
  return checkout


@pytest.mark.long
def test_packages_are_installed_once_and_anew_with_another_lock(checkout):
  (checkout.root / 'beside.py').write_text('version = "ours"')
  (checkout.root / 'murmuration' / 'command.py').write_text(
    'import sys\ndef main(): return print(*sys.argv[1:])'
  )
  (checkout.root / 'murmuration' / '__init__.py').touch()
  # As an older script of this clone left it.
  checkout.venv.mkdir()
  stamp = {'root': str(checkout.root), 'name': '', 'pins': 'others'}
  (checkout.venv / 'murmuration.json').write_text(json.dumps(stamp))
  assert 'Launchpad' in checkout.make()
  assert checkout.imported('demo', 'beside') == ['1.0', 'ours']
  command = [checkout.venv / 'bin' / 'murmuration', 'run', 'a b']
  assert subprocess.check_output(command, cwd='/', text=True) == 'run a b\n'
  shutil.rmtree(checkout.index)  # and what follows needs none
  assert checkout.make(PATH='/usr/bin:/bin') == ''
  checkout.index.mkdir()
  checkout.lock(demo='2.0')
  # As after `. .venv/bin/activate`: this Python is deleted meanwhile.
  path = f'{checkout.venv}/bin:{checkout.environ["PATH"]}'
  checkout.make(PATH=path)
  assert checkout.imported('demo') == ['2.0']


@pytest.mark.long
def test_another_file_than_the_locked_one_is_refused_and_the_next_call_goes_on(
  checkout,
):
  checkout.lock(demo='1.0', digest='0' * 64)
  for name, version in (('setuptools', '80.1'), ('wheel', '1.0')):
    checkout.lock('other.txt', **{name: version})
  checkout.make(code=1)
  assert not list(checkout.venv.glob('lib/*/site-packages/demo.py'))
  checkout.lock(demo='1.0')
  checkout.make()
  assert checkout.imported('demo') == ['1.0']


@pytest.mark.long
def test_pip_installs_where_uv_does_not_work(checkout):
  tools = pathlib.Path(checkout.environ['PATH'].split(':')[0])
  program(tools / 'uv', f'env > {tools}/said', 'exit 1')
  checkout.lock('other.txt', setuptools='80.1', wheel='1.0')
  checkout.make(
    PIP_INDEX_URL='file:///a', PIP_EXTRA_INDEX_URL='file:///b file:///c'
  )
  assert checkout.imported('demo') == ['1.0']
  said = (tools / 'said').read_text().splitlines()
  assert 'UV_INDEX_URL=file:///a' in said
  assert 'UV_EXTRA_INDEX_URL=file:///b file:///c' in said
  assert f'UV_FIND_LINKS={checkout.index}' in said


@pytest.mark.long
def test_two_set_ups_at_once_make_one_environment_on_another_disk(
  checkout, tmp_path
):
  (tmp_path / 'disk').mkdir()
  checkout.venv.symlink_to(tmp_path / 'disk')
  both = [checkout.start() for _ in range(2)]
  said = [process.communicate(timeout=200)[0] for process in both]
  assert [process.returncode for process in both] == [0, 0], said
  assert ''.join(said).count('Launchpad') == 1
  assert checkout.venv.is_symlink()
  assert checkout.imported('demo') == ['1.0']


@pytest.mark.long
def test_extras_see_the_stack_and_each_python_has_its_own_environment(checkout):
  checkout.lock('extras.txt', more='3.0')
  checkout.make('extras', f'--python={PYTHON}')
  assert checkout.imported('demo', venv=f'.venv-{PYTHON}') == ['1.0']
  where = f'.venv-extras-{PYTHON}'
  assert checkout.imported('demo', 'more', venv=where) == ['1.0', '3.0']
  assert not checkout.venv.exists()


def test_what_the_user_or_another_clone_made_is_left_alone(checkout, tmp_path):
  other = tmp_path / 'other'
  other.mkdir()
  (other / 'mine').touch()
  checkout.venv.symlink_to(other)
  assert 'Move it away' in checkout.make(code=1)
  (other / 'murmuration.json').write_text('{"root": "/elsewhere"}')
  checkout.make(code=1)
  assert (other / 'mine').exists()


@pytest.mark.parametrize('words', [(), ('--python=/no/python',)])
def test_without_a_python_it_says_how_to_get_one(checkout, tmp_path, words):
  # pyenv has such files for versions that are not chosen.
  program(tmp_path / 'bin' / 'python3.11', 'exit 127')
  said = checkout.make(*words, code=1, PATH=str(tmp_path / 'bin'))
  assert 'uv python install' in said and 'PYTHON=' in said
  assert not list(checkout.root.glob('.venv*'))


def test_a_python_of_pyenv_is_found_and_one_of_the_clone_is_not(
  monkeypatch, tmp_path
):
  monkeypatch.syspath_prepend(str(REQUIREMENTS))
  environment = importlib.import_module('environment')
  monkeypatch.setattr(environment, 'ROOT', tmp_path / 'clone')
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('PATH', str(tmp_path / 'clone' / '.venv' / 'bin'))
  pyenv = tmp_path / '.pyenv' / 'versions' / f'{PYTHON[6:]}.1' / 'bin'
  for directory in (tmp_path / 'clone' / '.venv' / 'bin', pyenv):
    directory.mkdir(parents=True)
    (directory / PYTHON).symlink_to(
      pathlib.Path(sys.base_prefix, 'bin', PYTHON)
    )
  assert environment.find('', '') == str(pyenv / PYTHON)
  del sys.modules['environment']


def test_what_the_disk_refuses_is_a_sentence(checkout):
  checkout.venv.symlink_to('/proc/nowhere')
  assert 'environment: ' in checkout.make(code=1)
  assert os.path.islink(checkout.venv)
