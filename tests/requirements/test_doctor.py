"""The doctor names what is wrong, and the fix."""

import os
import pathlib
import sys

import pytest

from tests.requirements import scripts


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


def test_the_doctor_sees_another_home_of_python(doctor, venv):
  ((what, _),) = doctor.shell_problems({'PYTHONHOME': '/x'}, venv)
  assert 'PYTHONHOME=/x hides' in what


def test_the_doctor_sees_a_path_that_hides_packages_and_no_other(
  doctor, environment, venv, tmp_path
):
  extras = environment.Environment('extras', root=venv.root)
  mine, theirs = tmp_path / 'mine', tmp_path / 'theirs'
  for path in (
    venv.site / 'absl' / '__init__.py',
    venv.site / 'tree.py',
    extras.directory / 'lib/python3.11/site-packages/wandb.py',
    mine / 'tree' / 'data.py',  # no package, which comes after one
    mine / 'docs.py',  # of that name we have a plain directory
    *(theirs / f'{n}.py' for n in ('absl', 'my_env', 'studies', 'wandb')),
  ):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

  def said(environment, *paths):
    variables = {'PYTHONPATH': os.pathsep.join(paths)}
    return list(doctor.shell_problems(variables, environment))

  none = (str(mine), '', '/no', str(environment.ROOT), str(venv.site))
  assert said(venv, *none) == []
  for which, hidden in (
    (venv, 'absl, studies'),
    (extras, 'absl, studies, wandb'),
  ):
    ((what, fix),) = said(which, *none, str(theirs))
    assert what == f'PYTHONPATH={theirs} hides {hidden}'
    assert fix == 'unset PYTHONPATH'


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
    scripts.program(pathlib.Path(venv.bin), answer)
  else:
    pathlib.Path(venv.bin).write_text('')  # and no #! line either
  found = [what for what, _ in doctor.examine(venv)]
  assert f'{venv.bin} does not run, or cannot list packages' in found


@pytest.fixture
def fixed(doctor, monkeypatch, capsys):
  """What the doctor says with such arguments, and what it examined."""
  examined = []

  def examine(environment):
    examined.append(environment.directory.name)
    yield 'all wrong', doctor.REBUILD

  monkeypatch.setattr(doctor, 'examine', examine)

  def call(*words):
    monkeypatch.setattr(sys, 'argv', ['doctor.py', *words])
    assert doctor.main() == 1
    return examined[-1], capsys.readouterr().out.splitlines()[-1]

  return call


@pytest.mark.parametrize(
  ('words', 'where', 'fix'),
  [
    ((), '.venv', 'environment'),
    (('', '--python='), '.venv', 'environment'),
    (('extras',), '.venv-extras', 'extras'),
    (
      ('extras', '--python=/a/python'),
      '.venv-extras-python',
      'extras PYTHON=/a/python',
    ),
  ],
)
def test_the_doctor_of_another_environment_mends_that(fixed, words, where, fix):
  assert fixed(*words) == (where, f'  fix: make distclean {fix}')


def test_the_doctor_sees_what_lies_over_the_stack_that_extras_see(
  doctor, environment, venv, tmp_path, monkeypatch
):
  extras = environment.Environment('extras', root=venv.root)
  for place, version in ((extras, '2.0.0'), (venv, '1.26.4')):
    site = place.directory / 'lib' / 'python3.11' / 'site-packages'
    about = site / f'numpy-{version}.dist-info'
    about.mkdir(parents=True)
    (about / 'METADATA').write_text(f'Name: numpy\nVersion: {version}\n')
  scripts.program(
    extras.bin,
    f'export PYTHONPATH={extras.site}:{venv.site}',
    f'shift; exec {sys.executable} "$@"',
  )
  extras.write_stamp(extras.wanted())
  monkeypatch.setattr(environment.machine, 'find', lambda *unused: 'python')
  monkeypatch.setattr(environment, 'broken', lambda *unused: '')
  found = [what for what, _ in doctor.examine(extras)]
  numpy = environment.read_pins(venv.pins)['numpy'].split()[0].split('==')[1]
  assert f'numpy: 2.0.0 is installed; {numpy} is locked' in found
