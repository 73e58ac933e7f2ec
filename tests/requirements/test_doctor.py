"""The doctor names what is wrong, and the fix."""

import importlib
import importlib.metadata
import pathlib
import sys

import pytest

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[2] / 'requirements'


@pytest.fixture
def doctor(monkeypatch, tmp_path):
  """The doctor of a clone that locks two packages, and imports one."""
  monkeypatch.syspath_prepend(str(REQUIREMENTS))
  doctor = importlib.import_module('doctor')
  monkeypatch.setattr(doctor, 'ROOT', tmp_path)
  monkeypatch.setattr(doctor, 'IMPORTS', 'six')
  (tmp_path / 'requirements').mkdir()
  versions = {n: importlib.metadata.version(n) for n in ('six', 'mdurl')}
  lock = ''.join(f'{n}=={v} \\\n    --hash\n' for n, v in versions.items())
  (tmp_path / 'requirements' / 'lock.txt').write_text(lock)
  yield doctor
  del sys.modules['doctor']


def test_nothing_is_wrong_with_what_is_locked(doctor):
  assert list(doctor.problems()) == []


def test_other_versions_and_missing_packages_are_named(doctor, tmp_path):
  lock = tmp_path / 'requirements' / 'lock.txt'
  lock.write_text('six==0.1 \\\nno-such-package==2.0 \\\n')
  first, second = doctor.problems()
  assert 'six 0.1' in first and 'no-such-package 2.0' in second
  assert 'make distclean' in first and 'make distclean' in second


def test_a_path_that_hides_a_package_is_named(doctor, monkeypatch, tmp_path):
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'hidden.py').touch()
  monkeypatch.setattr(doctor, 'ROOT', tmp_path / 'requirements')
  monkeypatch.setattr(doctor, 'IMPORTS', 'hidden no_such_module')
  monkeypatch.syspath_prepend(str(tmp_path / 'mine'))
  hidden, missing = doctor.problems()
  assert str(tmp_path / 'mine') in hidden and 'PYTHONPATH' in hidden
  assert 'no_such_module' in missing
