"""Launchpad's Python half as a wheel, and what is said without it."""

import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

import pytest

from murmuration import command
from murmuration import process
from murmuration import setup

LAUNCHPAD = 'dm-launchpad-nightly'
VERSION = setup.PINS[LAUNCHPAD][0]
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def whole(tmp_path):
  """As Launchpad's own file is built: a Python half and Courier's."""
  path = tmp_path / 'whole.whl'
  about = f'dm_launchpad_nightly-{VERSION}.dist-info'
  with zipfile.ZipFile(path, 'w') as file:
    file.writestr('launchpad/__init__.py', 'import courier')
    file.writestr('launchpad/nodes/base.py', '')
    file.writestr('courier/__init__.py', 'import nothing_of_the_kind')
    file.writestr(
      f'{about}/METADATA',
      f'Metadata-Version: 2.1\nName: {LAUNCHPAD}\n'
      f'Version: {VERSION}\nRequires-Dist: mock\nRequires-Dist: psutil\n',
    )
    file.writestr(f'{about}/WHEEL', 'Tag: cp310-cp310-linux_x86_64')
    file.writestr(f'{about}/RECORD', 'courier/__init__.py,,')
  return path


def test_pip_installs_the_python_half_with_the_stub(whole, tmp_path):
  half = setup.python_half(whole, tmp_path)
  site = tmp_path / 'site'
  subprocess.run(
    [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index']
    + ['--no-deps', '--target', site, half],
    check=True,
    timeout=100,
  )
  found = {str(path.relative_to(site)) for path in site.rglob('*.py')}
  assert found == {
    'launchpad/__init__.py',
    'launchpad/nodes/base.py',
    'courier.py',
  }
  assert (site / 'courier.py').read_bytes() == setup._STUB.read_bytes()
  (about,) = site.glob('*.dist-info/METADATA')
  assert re.findall('Requires-Dist: (.*)', about.read_text()) == ['psutil']
  (record,) = site.glob('*.dist-info/RECORD')  # pip can remove it again
  assert 'courier.py,sha256=' in record.read_text()


def test_another_stub_is_installed_over_the_one_that_is_there(
  whole, tmp_path, monkeypatch
):
  venv.create(tmp_path / 'venv', with_pip=False)
  (site,) = tmp_path.glob('venv/lib/*/site-packages')
  # The file is there already; all else is pip's.
  (tmp_path / 'pip').write_text(
    f'#!/bin/sh\nif [ $1 = download ]; then for to; do :; done\n'
    f'cp {whole} $to; else exec {sys.executable} -m pip '
    f'--python {tmp_path}/venv/bin/python "$@"; fi\n'
  )
  (tmp_path / 'pip').chmod(0o755)
  stub = tmp_path / 'courier.py'
  monkeypatch.setattr(setup, '_PIP', (str(tmp_path / 'pip'),))
  monkeypatch.setattr(setup, '_STUB', stub)
  monkeypatch.syspath_prepend(site)
  for text in ('first', 'second'):
    stub.write_text(text)
    assert not setup.is_there(LAUNCHPAD)
    (tmp_path / text).mkdir()
    setup.install(LAUNCHPAD, tmp_path / text)
    assert (site / 'courier.py').read_text() == text
    assert setup.is_there(LAUNCHPAD)


def test_the_lock_has_the_same_file_of_acme_and_no_launchpad():
  lock = (ROOT / 'requirements' / 'lock.txt').read_text()
  version, digest = setup.PINS['dm-acme']
  (hashes,) = re.findall(
    rf'^dm-acme=={version} ((?: *.*\n    .*)*)', lock, re.M
  )
  assert digest in hashes
  assert 'launchpad' not in lock  # its only file is for CPython 3.10


def test_the_stub_of_courier_says_what_it_is():
  code = (
    'from courier.handlers.python import pybind; import courier; '
    'courier.Server("x")'
  )
  done = subprocess.run(
    [sys.executable, '-S', '-c', code],
    env={'PYTHONPATH': str(setup._STUB.parent)},
    capture_output=True,
    text=True,
  )
  assert 'NotImplementedError: A stub in the place of Courier' in done.stderr


def test_a_failure_is_pip_s_own_words(monkeypatch, tmp_path):
  pip = tmp_path / 'pip'
  pip.write_text('#!/bin/sh\necho no such index\nexit 1\n')
  pip.chmod(0o755)
  monkeypatch.setattr(setup, '_PIP', (str(pip),))
  with pytest.raises(setup.SetupError, match='pip download failed:\nno such'):
    setup.install(LAUNCHPAD, tmp_path)


@pytest.mark.parametrize('own', [False, True])
def test_pip_installs_where_the_wheel_is(own, monkeypatch, tmp_path):
  places = [ROOT if own else tmp_path]
  monkeypatch.setattr(setup.site, 'getusersitepackages', places.pop)
  seen = []

  def run(command, **options):
    seen.extend(command)
    return subprocess.CompletedProcess(command, 0)

  monkeypatch.setattr(setup.subprocess, 'run', run)
  setup._pip('install', 'half.whl')
  assert ('--user' in seen, '-I' in seen) == (own, not own)


def test_without_launchpad_command_and_library_say_what_to_type(
  monkeypatch, capsys
):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'argv', [*sys.argv])
  monkeypatch.setattr(os, 'environ', {**os.environ})
  monkeypatch.setattr(setup.importlib.util, 'find_spec', lambda name: None)
  assert command.main(['run', 'ppo']) == 1
  assert 'murmuration setup' in capsys.readouterr().err
  with pytest.raises(ImportError, match='murmuration setup'):
    process.Process()
