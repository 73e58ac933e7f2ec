"""Shards that do not have the same number of actors, in a real run."""

import json

import pytest

from murmuration.run_records import run_directory

# A shard may be ahead of another by what its sampler asks for ahead, and what
# actors hold: some 2,500 items. A third of the budget is more.
STEPS = 12_000


@pytest.fixture(scope='module')
def uneven(start_run):
  run = start_run(
    'apex_dqn',
    '--config.agent.hidden_sizes=(16,)',
    '--config.agent.batch_size=16',
    '--config.agent.min_replay_size=100',
    '--config.run.eval_episodes=2',
    '--config.run.evaluations=2',
    f'--config.run.steps_per_agent={STEPS}',
    # Ends a run that hangs.
    '--config.run.wall_clock_s=150',
    '--config.actors.num_actors=3',
    '--config.actors.shards=2',
    '--config.actors.envs_per_actor=2',
    '--config.pace.samples_per_insert=1',
    '--config.actors.error_buffer=64',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  return run_directory.open(run.directory)


def test_the_budget_is_used_though_one_shard_has_more_actors(uneven):
  summary = uneven.summary()
  assert summary['outcome'] == 'budget', summary
  assert summary['totals']['actor_steps'] == STEPS


def test_each_shard_is_written_half_of_the_budget(uneven):
  # Actors 0 and 2 write to shard 0, actor 1 to shard 1.
  state = json.loads((uneven.path / 'metrics' / 'counter.json').read_text())
  steps = [state['node_totals'][f'actor/{i}']['actor_steps'] for i in range(3)]
  assert steps == [STEPS // 4, STEPS // 2, STEPS // 4]
