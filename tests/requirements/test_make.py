"""Which commands `make` runs, and on which Python."""

import ast
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


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
    cwd=ROOT,
    env={**os.environ, 'PYTHON': '/another/python'},
    text=True,
  )
  assert wanted in commands
  assert ('--python=python3.10' in commands) == bool(given)


@pytest.mark.parametrize(
  ('target', 'name', 'where'),
  [('site', 'site', '.venv-site'), ('test-next', 'next', '.venv-next')],
)
def test_make_hands_its_python_on(target, name, where):
  for given, ending, flag in (
    (['PYTHON=/opt/python3.13'], '-python3.13', ' --python=/opt/python3.13'),
    ([], '', ''),
  ):
    commands = subprocess.check_output(
      ['make', '--no-print-directory', '-n', target, *given],
      cwd=ROOT,
      text=True,
    )
    first, *_ = commands.splitlines()
    assert first.rstrip().endswith(f'environment.py {name}{flag}')
    assert f'{where}{ending}/bin/python -m ' in commands


def test_what_the_next_python_runs_imports_nothing_that_it_lacks():
  command = subprocess.check_output(
    ['make', '--no-print-directory', '-n', 'test-next'],
    cwd=ROOT,
    text=True,
  ).replace('\\\n', ' ')
  words = shlex.split(command.splitlines()[-1])
  places = [word for word in words if word.startswith('tests/')]
  ignored = {
    word.partition('=')[2] for word in words if word.startswith('--ignore=')
  }
  assert len(places) == 2 and 'tests/agents/acme' in ignored
  lacking = ('acme', 'launchpad', 'reverb', 'tensorflow_probability', 'trfl')
  # Of launch, what needs no Launchpad.
  fine = {'actor_settings', 'experiment'}
  found = 0
  for path in (
    file for place in places for file in (ROOT / place).rglob('*.py')
  ):
    name = str(path.relative_to(ROOT))
    if any(name.startswith(place) for place in ignored):
      continue
    found += 1
    for node in ast.parse(path.read_text('utf-8')).body:
      if isinstance(node, ast.Import):
        modules = {alias.name.partition('.')[0] for alias in node.names}
        assert not modules & set(lacking), name
      elif isinstance(node, ast.ImportFrom):
        top = (node.module or '').partition('.')[0]
        assert top not in lacking, name
        if node.module == 'launch':
          assert {alias.name for alias in node.names} <= fine, name
  assert found > 50


def test_help_of_make_begins_where_a_sentence_does():
  said = subprocess.check_output(
    ['make', '--no-print-directory', 'help'],
    cwd=ROOT,
    text=True,
  )
  assert re.match('[A-Z]', said)
  for target in ('swarm', 'site', 'test-next', 'doctor', 'distclean'):
    assert f'make {target}' in said, target


def test_make_builds_what_it_deleted_where_its_python_was_activated(tmp_path):
  shutil.copy(ROOT / 'Makefile', tmp_path)
  for directory, line in (
    ('.venv/bin', 'exit 1'),
    ('bin', 'echo built by $0 $*'),
  ):
    program = tmp_path / directory / 'python3'
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\n{line}\n')
    program.chmod(0o755)
  said = subprocess.check_output(
    ['make', '--no-print-directory', 'distclean', 'environment'],
    cwd=tmp_path,
    env={
      'PATH': f'{tmp_path}/.venv/bin:{tmp_path}/bin:{os.environ["PATH"]}',
    },
    text=True,
  )
  assert f'built by {tmp_path}/bin/python3 requirements/environ' in said
  assert not (tmp_path / '.venv').exists()


def test_make_finds_the_extras_beside_the_python_it_is_given():
  commands = subprocess.check_output(
    ['make', '--no-print-directory', '-n', 'test-extras', 'PYTHON=python3.10'],
    cwd=ROOT,
    text=True,
  )
  assert 'environment.py extras --python=python3.10' in commands
  assert '.venv-extras-python3.10/bin/python -m pytest' in commands
