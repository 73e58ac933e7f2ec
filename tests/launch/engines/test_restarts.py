"""launch/engines/restarts.py: the rules of a program."""

import launchpad as lp
import pytest

from murmuration.launch.engines import restarts


@pytest.fixture
def program():
  program = lp.Program('test')
  for label in ('actor', 'learner'):
    with program.group(label):
      program.add_node(lp.PyNode(print))
  return program


def test_without_rules_nothing_comes_back(program):
  assert restarts.of(program) == restarts.Rules()
  assert not restarts.of(program).come_back


def test_assignments_add_up(program):
  restarts.assign(program, max_restarts=3)
  restarts.assign(program, come_back=True, ends_run='learner')
  assert restarts.of(program) == restarts.Rules(True, 'learner', 3)


def test_an_unknown_group_is_refused(program):
  with pytest.raises(ValueError, match='critic'):
    restarts.assign(program, ends_run='critic')
  assert restarts.of(program).ends_run == ''
