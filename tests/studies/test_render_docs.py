"""The parts of the docs that are read from the code are up to date."""

import ast
import functools
import pathlib
import re
import shlex

import pytest

from murmuration.launch import command_line
from murmuration.launch import registry
from murmuration.launch import session
from murmuration.studies import render_docs


def test_the_docs_show_what_the_code_builds():
  written = render_docs.written()
  assert set(written) >= {*render_docs.pages(), *render_docs.tables()}
  for page, text in written.items():
    assert page.read_text(encoding='utf-8') == text, f'{page}: run `make docs`'


def test_every_table_of_a_study_names_the_bar():
  found = render_docs.tables()
  assert len(found) > 30
  for path, text in found.items():
    assert 'of the last three evaluations >= ' in text, path


def test_a_part_is_written_between_its_markers_and_nowhere_else():
  text = 'a\n<!-- x begins -->\nold\n<!-- x ends -->\nb'
  assert render_docs.render(text, {'x': 'new', 'y': 'never'}) == (
    'a\n<!-- x begins -->\nnew\n<!-- x ends -->\nb'
  )


def test_the_readme_has_the_table_and_fits_a_minute():
  text = render_docs.pages()[0].read_text(encoding='utf-8')
  assert '<!-- agent table begins -->' in text
  assert len(text.splitlines()) <= 130


_COMMAND = r'^ {4}(?:\S*python launch/run\.py|murmuration run) (.*)$'


def _commands():
  """Arguments of each run of the docs that names an agent of the project."""
  for page in render_docs.pages():
    text = page.read_text(encoding='utf-8').replace('\\\n', '')
    for line in re.findall(_COMMAND, text, re.M):
      words = shlex.split(line, comments=True)
      if words[0].partition(':')[0] in registry.agents():
        yield page.name, words


def test_every_command_in_the_docs_is_accepted(capsys, monkeypatch):
  monkeypatch.syspath_prepend(session.root() / 'tests')  # swap.py
  commands = list(_commands())
  assert len(commands) > 90
  for page, words in commands:
    # What is the reader's is not there; test_your_environment.py has it. Nor
    # are the packages of sinks.
    words = [w for w in words if '=my_' not in w and '--sink' not in w]
    code = command_line.main([*words, '--print-config'])
    assert code == 0, (page, words, capsys.readouterr().err)


@pytest.mark.long
def test_the_commands_of_all_studies_can_be_pasted(capsys):
  commands = {
    entry['command']
    for found in render_docs.results().values()
    for entry in found['variants'].values()
  }
  for command in sorted(commands):
    script, *words = shlex.split(command)
    assert shlex.join([script, *words]) == command
    if script == 'run.py':
      code = command_line.main([*words, '--print-config'])
      assert code == 0, (command, capsys.readouterr().err)


@functools.cache
def _defined(path: pathlib.Path) -> set[str]:
  """'function', 'Class', 'Class.method' and 'Class.attribute' of a module."""

  def names(body: list[ast.stmt]) -> set[str]:
    return {
      name
      for node in body
      for name in (
        [node.name]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        else [ast.unparse(target) for target in node.targets]
        if isinstance(node, ast.Assign)
        else []
      )
    }

  body = ast.parse(path.read_text(encoding='utf-8')).body
  return names(body) | {
    f'{node.name}.{name}'
    for node in body
    if isinstance(node, ast.ClassDef)
    for name in names(node.body)
  }


def _wrong(cell: str) -> list[str]:
  """What a cell names that is not there.

  Args:
    cell: such as '`agents/x.py` `f`, `C.method` (`option`)'.
  """
  root = session.root()
  agents = sorted((root / 'agents').rglob('*.py'))
  path, wrong = None, []
  for quoted in re.findall(r'`([^`]+)`', re.sub(r' \(`[^)]*\)', '', cell)):
    name = re.sub(r'\(.*\)$', '', quoted)
    if name.endswith('.py'):
      # A second time a file may go without its directory.
      known = [root / name, *(p for p in agents if p.name == name)]
      path = next((p for p in known if p.exists()), None)
      if path is None:
        wrong.append(name)
    elif re.fullmatch(r'[A-Za-z_]\w*\.\w+', name):
      if not any(name in _defined(p) for p in (*agents, path) if p):
        wrong.append(name)
    elif path is not None and name not in _defined(path):
      wrong.append(f'{path.name} {name}')
  return wrong


def test_what_the_tables_of_equations_name_is_there():
  rows = 0
  for page in render_docs.pages():
    in_table = False
    for line in page.read_text(encoding='utf-8').splitlines():
      cells = [cell.strip() for cell in line.split(' | ')]
      if cells[0] == '| equation':
        in_table = True
      elif not line.startswith('|'):
        in_table = False
      elif in_table and not line.startswith('| ---'):
        rows += 1
        assert _wrong(cells[1]) == [], f'{page.name}: {line}'
  assert rows > 50


def test_a_name_that_is_not_there_is_found():
  assert _wrong('`agents/updates.py` `importance_weights`') == []
  assert _wrong('`agents/learner.py` `importance_weights`') == [
    'learner.py importance_weights'
  ]
  assert _wrong('`agents/gone.py` `f`') == ['agents/gone.py']
  assert _wrong('`DDPG.gone`, `agents/d4pg.py`') == ['DDPG.gone']
