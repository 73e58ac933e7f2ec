"""launch/policies.py: which policy a group has."""

import launchpad as lp
import pytest

from launch import policies


@pytest.fixture
def program():
  program = lp.Program('test')
  for label in ('actor', 'learner'):
    with program.group(label):
      program.add_node(lp.PyNode(print))
  return program


def test_a_group_without_a_policy_stops_the_run(program):
  assert policies.of(program) == {
    'actor': policies.Stop(),
    'learner': policies.Stop(),
  }


def test_assignments_add_up(program):
  policies.assign(program, {'actor': policies.Restart()})
  policies.assign(program, {'learner': policies.EndsRun()})
  policies.assign(program, {'actor': policies.Degrade()})
  assert policies.of(program) == {
    'actor': policies.Degrade(),
    'learner': policies.EndsRun(),
  }


def test_an_unknown_group_is_refused_with_those_there_are(program):
  with pytest.raises(ValueError, match="'critic': it has actor, learner"):
    policies.assign(program, {'critic': policies.Stop()})
  assert policies.of(program)['actor'] == policies.Stop()


def test_a_class_is_not_a_policy(program):
  with pytest.raises(TypeError, match='not a policy'):
    policies.assign(program, {'actor': policies.Restart})


def test_restart_pauses_double_up_to_a_cap():
  restart = policies.Restart(first_backoff_s=0.2, backoff_cap_s=1.0)
  pauses = [restart.backoff_s(n) for n in (0, 1, 2, 3, 1000)]
  assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_negative_numbers_are_refused():
  with pytest.raises(ValueError, match='max_restarts=-1'):
    policies.Restart(max_restarts=-1)
