"""launch/engines/restarts.py: which policy a group has."""

import launchpad as lp
import pytest

from launch.engines import restarts


@pytest.fixture
def program():
  program = lp.Program('test')
  for label in ('actor', 'learner'):
    with program.group(label):
      program.add_node(lp.PyNode(print))
  return program


def test_a_group_without_a_policy_stops_the_run(program):
  assert restarts.of(program) == {
    'actor': restarts.Stop(),
    'learner': restarts.Stop(),
  }


def test_assignments_add_up(program):
  restarts.assign(program, {'actor': restarts.Restart()})
  restarts.assign(program, {'learner': restarts.EndsRun()})
  restarts.assign(program, {'actor': restarts.Stop()})
  assert restarts.of(program) == {
    'actor': restarts.Stop(),
    'learner': restarts.EndsRun(),
  }


def test_an_unknown_group_is_refused_with_those_there_are(program):
  with pytest.raises(ValueError, match="'critic': it has actor, learner"):
    restarts.assign(program, {'critic': restarts.Stop()})
  assert restarts.of(program)['actor'] == restarts.Stop()


def test_a_class_is_not_a_policy(program):
  with pytest.raises(TypeError, match='not a policy'):
    restarts.assign(program, {'actor': restarts.Restart})


def test_restart_pauses_double_up_to_a_cap():
  restart = restarts.Restart(first_backoff_s=0.2, backoff_cap_s=1.0)
  pauses = [restart.backoff_s(n) for n in (0, 1, 2, 3, 1000)]
  assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_negative_numbers_are_refused():
  with pytest.raises(ValueError, match='max_restarts=-1'):
    restarts.Restart(max_restarts=-1)
