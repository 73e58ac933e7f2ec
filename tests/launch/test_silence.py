"""Real runs in which something hangs or leaves: said, and ended."""

import pathlib
import re

import pytest

from murmuration.run_records import run_directory

HERE = pathlib.Path(__file__).parent
STEPS = 3000
SMALL = (
  'apex_dqn',
  '--config.agent.hidden_sizes=(16,)',
  '--config.agent.batch_size=16',
  '--config.agent.min_replay_size=100',
  '--config.run.eval_episodes=2',
  '--config.run.updates_per_call=2',
  '--config.run.evaluations=3',
  '--config.actors.num_actors=2',
  '--config.actors.envs_per_actor=2',
  f'--config.run.steps_per_agent={STEPS}',
)


@pytest.fixture
def start(start_run, tmp_path):
  def start(environment, *flags, once=False):
    variables = {
      'FAULTY_RELEASE': str(tmp_path / 'release'),
    }
    if once:
      variables['FAULTY_ONCE'] = str(tmp_path / 'once')
    return start_run(
      *SMALL,
      f'--config.environment=faulty_environments:{environment}-v0',
      *flags,
      modules=HERE,
      environment=variables,
    )

  return start


@pytest.mark.parametrize('environment', ['Hangs', 'HangsInReset'])
def test_an_environment_that_hangs_once_costs_a_restart(start, environment):
  # Long enough that on a busy machine nobody else is taken for hung.
  run = start(environment, '--config.run.silent_s=16', once=True)
  assert run.wait() == 0, run.output
  assert 'silent for 8 s' in run.output
  assert 'in hung_in_here (faulty_environments.py, line ' in run.output
  dumped = [run.log(f'actor/{i}') for i in range(2)] + [run.log('evaluator/0')]
  assert any('in hung_in_here' in log for log in dumped)
  run.assert_nothing_is_left()


def test_an_environment_that_hangs_always_ends_the_run_with_the_sentence(start):
  run = start('Hangs', '--config.run.silent_s=5', '--config.run.max_restarts=2')
  assert run.wait() == 1
  assert 'failed after 2 restarts in a row: silent for 5 s' in run.output
  assert 'in hung_in_here (faulty_environments.py' in run.output
  run.assert_nothing_is_left()


@pytest.mark.parametrize(
  ('environment', 'why'),
  [('Exits', 'SystemExit: 0'), ('Leaves', 'it left with exit code 0')],
)
def test_an_environment_that_ends_its_process_has_failed_it(
  start, environment, why
):
  run = start(environment, '--config.run.max_restarts=1')
  assert run.wait() == 1, run.output
  assert 'failed after 1 restarts in a row' in run.output
  assert why in run.output
  run.assert_nothing_is_left()


def test_an_environment_that_left_once_costs_a_restart(start):
  run = start('Leaves', once=True)
  assert run.wait() == 0, run.output
  assert 'it left with exit code 0' in run.output


def test_an_environment_that_cannot_be_closed_costs_nothing(start):
  run = start('RaisesInClose')
  assert run.wait() == 0, run.output
  assert 'the door is stuck' in run.log('actor/0')


def test_episodes_without_end_are_announced_and_cut_in_evaluations(start):
  run = start('Endless', '--config.run.eval_max_steps=70')
  assert run.wait() == 0, run.output
  assert 'Endless-v0 has no step limit' in run.output.splitlines()[0]
  assert 'cut after 70 steps' in run.output
  rows = run_directory.open(run.directory).metrics('evaluation')
  # A step that its pole would not have survived pays nothing.
  assert rows and all(0 < x <= 70 for row in rows for x in row['returns'])


def test_a_run_in_which_nothing_moves_says_who_waits_for_what_and_ends(start):
  # So patient with silence that only the standstill of all is left.
  run = start('Hangs', '--config.run.silent_s=600', '--config.run.stall_s=30')
  assert run.wait() == 1
  # A wait is as old as the report of it, which is late on a busy machine.
  assert re.search(r'learner/0 for \d+ s now: Waiting for table', run.output), (
    run.output
  )
  assert 'actor/0 silent for 10 s' in run.output
  assert 'no step and no update for 30 s: ' in run.output
  run.assert_nothing_is_left()


@pytest.mark.long
def test_a_module_that_raises_on_import_is_a_sentence(run_commands, tmp_path):
  (done,) = run_commands(
    [
      {
        'argv': ['dqn', '--config.environment=raising_environment:Any-v0'],
        'cwd': str(tmp_path),
        'mode': 'no_start',
      }
    ]
  )
  assert done['code'] == 2
  assert done['stderr'].startswith('error: raising_environment:Any-v0 needs')
  assert 'RuntimeError: the licence has expired' in done['stderr']
  assert 'raising_environment.py:3' in done['stderr']
  assert 'Traceback' not in done['stderr']
