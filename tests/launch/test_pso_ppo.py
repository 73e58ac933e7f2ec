"""A swarm of PPO: its presets, and a real one."""

import numpy as np
import pytest

from murmuration.agents import ppo
from murmuration.environment_loops import environments
from murmuration.launch import cell as cell_lib
from murmuration.launch import experience
from murmuration.launch import registry
from murmuration.run_records import run_directory

ROLLOUT, BUDGET, EXPLORERS = 128, 1024, 3


@pytest.mark.parametrize('preset', registry.agent('pso_ppo').presets)
def test_an_explorer_is_the_plain_agent_whose_rollout_is_one_block(preset):
  cell = cell_lib.resolve('pso_ppo', preset)
  alone = cell_lib.resolve('ppo', preset).sections
  swarm = cell.sections['swarm']
  assert (swarm.k, swarm.c_max) == (10.0, 0.5)
  assert cell.sections['agent'] == alone['agent']
  found = experience.of_members(cell.experiment, 2)
  assert found.envs_per_member == alone['actors'].envs_per_actor
  assert found.steps_per_call == alone['agent'].rollout_steps


# A real swarm.


@pytest.fixture(scope='module')
def directory(start_run):
  run = start_run(
    'pso_ppo:cartpole',
    '--config.agent.hidden_sizes=(16,)',
    '--config.agent.unroll_length=16',
    f'--config.agent.rollout_steps={ROLLOUT}',
    '--config.agent.epochs=2',
    f'--config.run.steps_per_agent={BUDGET}',
    '--config.run.eval_episodes=2',
    '--config.run.target_return=None',
    f'--config.swarm.num_explorers={EXPLORERS}',
    '--config.swarm.b=1',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  run.assert_no_traceback()
  return run_directory.open(run.directory)


def test_a_swarm_of_ppo_learns_each_rollout_once(directory):
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  totals = summary['totals']
  assert totals['actor_steps'] == EXPLORERS * BUDGET
  updates = 2 * ROLLOUT // ppo.Config().batch_size
  assert totals['learner_steps'] == EXPLORERS * BUDGET // ROLLOUT * updates


def test_explorers_learn_from_what_their_own_policy_did(directory):
  rows = [
    row for row in directory.metrics('node_explorer') if 'lag_deviation' in row
  ]
  assert rows
  for row in rows:
    assert row['lag_deviation'] < 1e-4 and row['policy_lag'] == 0
    assert row['dropped_steps'] == 0 and np.isfinite(row['loss'])


def test_the_kept_star_is_a_policy_that_plays(directory):
  config = directory.config()
  assert config['agent_name'] == 'pso_ppo'
  agent = registry.make(config)
  assert isinstance(agent, ppo.PPO)
  with np.load(directory.checkpoints / 'star.npz') as star:
    theta = star['theta']
  assert theta.shape == (agent.layout.size,) and np.isfinite(theta).all()
  spec = environments.spec('CartPole-v1')
  actions = agent.greedy(theta)(np.ones((5, *spec.observation_shape)))
  assert set(actions.tolist()) <= {0, 1}
