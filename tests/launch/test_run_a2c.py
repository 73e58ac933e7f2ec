"""python launch/run_a2c.py: presets, and one real run."""

import numpy as np
import pytest

from agents import a2c
from configs import a2c as a2c_configs
from launch import actors
from launch import command_line
from launch import entry
from launch import experience
from launch import run_directory
from launch.topologies import actor_learner


def _parts(preset):
  config = a2c_configs.get_config(preset)
  settings = command_line.Settings(config, 'local_mp', 0, None, {})
  return (
    entry.make_experiment(settings, a2c.A2C, a2c.Config),
    command_line.make(actors.Config, config.actors),
  )


@pytest.mark.parametrize('preset', sorted(a2c_configs.PRESETS))
def test_a_preset_is_one_actor_whose_block_is_a_batch(preset):
  experiment, config = _parts(preset)
  assert actor_learner.build(experiment, config).groups
  plan = experience.of(experiment, config).plan
  assert (config.num_actors, plan.batch_size, plan.max_size) == (1, 1, 1)
  unroll = experiment.make_agent().unroll_length
  assert config.update_period == unroll * config.envs_per_actor


def test_a_run_learns_from_every_block_and_lags_by_what_is_on_its_way(
  start_run,
):
  run = start_run(
    '--config.run.steps_per_agent=24000',
    '--config.run.target_return=None',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=2',
    script='run_a2c.py',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  assert directory.config()['agent_name'] == 'a2c'
  plan = experience.of(*_parts('cartpole')).plan
  # In training, read ahead, in the queue, on the way to it.
  bound = 1 + plan.ahead + plan.max_size + plan.in_flight_per_writer
  rows = directory.metrics('node_learner')
  assert bound == 7 and rows
  assert max(row['policy_lag_max'] for row in rows) <= bound
  totals = directory.summary()['totals']
  assert totals['actor_steps'] == 24000
  assert 24000 // 80 - bound <= totals['learner_steps'] <= 24000 // 80
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    assert np.isfinite(saved['theta']).all()
