"""python launch/run_a2c.py: presets, and one real run."""

import dataclasses

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
def test_a_preset_makes_one_update_of_one_block(preset):
  experiment, config = _parts(preset)
  assert actor_learner.build(experiment, config).groups
  found = experience.of(experiment, config)
  assert (config.num_actors, found.updates_per_call) == (1, 1)
  assert found.plan.batch_size == 1
  unroll = experiment.make_agent().unroll_length
  assert found.acting_steps == unroll * config.envs_per_actor


def test_blocks_that_actors_cannot_share_are_refused():
  experiment, config = _parts('cartpole')
  config = dataclasses.replace(config, num_actors=2)
  with pytest.raises(ValueError, match='cannot be shared out'):
    actor_learner.build(experiment, config)


def test_actors_are_never_behind_and_every_block_is_learned_from(start_run):
  # Two actors of 8: each update waits for both, and both wait for it.
  run = start_run(
    '--config.actors.num_actors=2',
    '--config.actors.envs_per_actor=8',
    '--config.run.steps_per_agent=16000',
    '--config.run.target_return=None',
    '--config.run.evaluations=2',
    '--config.run.eval_episodes=2',
    script='run_a2c.py',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  directory = run_directory.open(run.directory)
  assert directory.config()['agent_name'] == 'a2c'
  rows = directory.metrics('node_learner')
  assert rows and {row['policy_lag_max'] for row in rows} == {0}
  # Zero lag: pi is mu.
  assert max(row['rho_deviation'] for row in rows) < 1e-3
  totals = directory.summary()['totals']
  assert totals['actor_steps'] == 16000
  # 80 steps each; the last may come after the budget is used.
  assert 16000 // 80 - 1 <= totals['learner_steps'] <= 16000 // 80
  with np.load(directory.checkpoints / 'agents.npz') as saved:
    assert np.isfinite(saved['theta']).all()
