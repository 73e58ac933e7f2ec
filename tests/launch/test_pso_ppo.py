"""run_swarm.py with PPO: its presets, a real swarm, and what is refused."""

import numpy as np
import pytest

from agents import ppo
from agents.swarm import explorers
from configs import ppo as ppo_configs
from configs import pso_ppo
from environment_loops import environments
from launch import command_line
from launch import experiment
from launch import registry
from launch.experience import members
from launch.topologies import swarm as swarm_topology
from run_records import run_directory

CONFIG = '--config=configs/pso_ppo.py:cartpole'
ROLLOUT, BUDGET, EXPLORERS = 128, 1024, 3


def _experiment(preset, **run):
  config = pso_ppo.get_config(preset)
  agent_config = command_line.make(ppo.Config, config.agent)
  swarm_config = command_line.make(explorers.Config, config.swarm)
  spec = command_line.environment_spec(config.environment)
  made = experiment.Experiment(
    make_agent=lambda: ppo.PPO(agent_config, spec),
    environment=config.environment,
    num_agents=swarm_config.num_explorers,
    max_replay_size=1,
    min_replay_size=1,
    env_steps_per_update=1,
    run=command_line.make(experiment.RunConfig, {**config.run, **run}),
  )
  return made, swarm_config


@pytest.mark.parametrize('preset', sorted(pso_ppo.PRESETS))
def test_a_preset_can_be_run(preset):
  made, swarm_config = _experiment(preset)
  assert swarm_topology.build(made, swarm_config).groups
  # The rule of the specs: any claim gets its trial after 2 b confirmations.
  assert swarm_config.idle_episodes == 2 * swarm_config.b
  assert (swarm_config.k, swarm_config.c_max) == (10.0, 0.5)
  # An explorer is the plain agent, whose rollout is one block.
  alone = ppo_configs.get_config(preset)
  assert pso_ppo.get_config(preset).agent == alone.agent
  found = members.of(made, 2)
  assert found.envs_per_member == alone.actors.envs_per_actor
  assert found.acting_steps == 2 * alone.agent.rollout_steps


def test_a_claim_that_ppo_cannot_make_is_refused():
  made, _ = _experiment('cartpole')
  config = explorers.Config(num_explorers=8, claim_mode='target')
  with pytest.raises(ValueError, match='ppo computes none. Set swarm.claim_m'):
    swarm_topology.build(made, config)


# A real swarm.


@pytest.fixture(scope='module')
def directory(start_run, request):
  run = start_run(
    f'--config={request.config.rootpath}/{CONFIG.partition("=")[2]}',
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
  return run_directory.open(run.directory)


def test_a_swarm_of_ppo_learns_each_rollout_once(directory):
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  totals = summary['totals']
  assert totals['actor_steps'] == EXPLORERS * BUDGET
  updates = 2 * ROLLOUT // ppo.Config().batch_size
  assert totals['learner_steps'] == EXPLORERS * BUDGET // ROLLOUT * updates
  for log in directory.logs.glob('*.log'):
    assert 'Traceback' not in log.read_text(), log.read_text()


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
