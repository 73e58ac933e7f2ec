"""The scripts of requirements/ as modules, and machines for them."""

import importlib
import pathlib
import sys
import types

import pytest

from tests.requirements import scripts


@pytest.fixture
def environment(monkeypatch):
  monkeypatch.syspath_prepend(str(scripts.REQUIREMENTS))
  yield importlib.import_module('environment')
  for name in ('environment', 'machine', 'doctor'):
    sys.modules.pop(name, None)


@pytest.fixture
def doctor(environment):
  return importlib.import_module('doctor')


@pytest.fixture
def shell(tmp_path, environment, monkeypatch):
  """The variables of a machine whose own Python is 3.12."""
  own = scripts.interpreter(tmp_path / 'bin' / 'python3', '3.12')
  monkeypatch.setattr(sys, 'executable', own)
  return {'HOME': str(tmp_path / 'home'), 'PATH': str(tmp_path / 'bin')}


@pytest.fixture
def venv(environment, tmp_path):
  """An environment that looks finished."""
  venv = environment.Environment('', root=str(tmp_path / 'checkout'))
  directory = pathlib.Path(venv.directory)
  scripts.program(directory / 'bin' / 'python', 'true')
  (directory / 'lib' / 'python3.11' / 'site-packages').mkdir(parents=True)
  venv.write_stamp(venv.wanted())
  return venv


@pytest.fixture
def unfinished(environment, venv, monkeypatch):
  """The environment, without its last steps, which do nothing here."""
  stamp = venv.wanted()
  del stamp['script']
  venv.write_stamp(stamp)
  for name in ('install', 'link'):
    monkeypatch.setattr(environment, name, lambda *unused: None)
  monkeypatch.setattr(environment, 'broken', lambda *unused: '')
  return venv


@pytest.fixture
def free(environment, monkeypatch):
  """A machine with so many bytes free on each disk; what was asked about."""
  asked = []

  def machine(size):
    def usage(path):
      asked.append(pathlib.Path(path))
      return types.SimpleNamespace(free=size)

    monkeypatch.setattr(environment.machine.shutil, 'disk_usage', usage)
    return asked

  return machine
