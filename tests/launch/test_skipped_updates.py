"""Updates that are skipped do not count as updates."""

import pathlib

import pytest

from murmuration.run_records import run_directory

MODULES = pathlib.Path(__file__).parent
COMMON = (
  '--config.agent.hidden_sizes=(8,)',
  '--config.run.evaluations=1',
  '--config.run.eval_episodes=1',
  '--config.run.target_return=None',
)


@pytest.mark.parametrize('agent', ['impala', 'a2c'])
def test_a_run_without_a_sound_update_fails(start_run, agent):
  run = start_run(
    agent,
    *COMMON,
    '--config.environment=huge_rewards:Always',
    '--config.agent.unroll_length=16',
    '--config.run.steps_per_agent=6000',
    modules=MODULES,
  )
  assert run.wait() == 1, run.output
  assert 'updates were skipped' in run.output
  totals = run_directory.open(run.directory).summary()['totals']
  assert totals.get('learner_steps', 0) == 0 < totals['skipped_updates']


def test_the_skipped_share_of_a_run_is_shown(start_run):
  run = start_run(
    'a2c',
    *COMMON,
    '--config.environment=huge_rewards:AtFirst',
    '--config.run.steps_per_agent=6000',
    modules=MODULES,
  )
  assert run.wait() == 0, run.output
  totals = run_directory.open(run.directory).summary()['totals']
  skipped, sound = totals['skipped_updates'], totals['learner_steps']
  assert 0 < skipped < sound
  shown = [x for x in run.output.splitlines() if 'updates skipped' in x]
  assert any(f'{skipped:,}' in line for line in shown), run.output
