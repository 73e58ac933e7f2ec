"""A swarm of DDPG: a real one, and what is refused."""

import numpy as np
import pytest

from murmuration import playing
from murmuration.agents import ddpg
from murmuration.environment_loops import environments
from murmuration.run_records import commands
from murmuration.run_records import run_directory

AGENT = 'pso_ddpg:inverted_pendulum'
NETWORK = {'policy_sizes': (16,), 'critic_sizes': (16,)}
BUDGET = 400
SMALL = (
  AGENT,
  *(f'--config.agent.{name}={sizes}' for name, sizes in NETWORK.items()),
  '--config.agent.min_replay_size=50',
  f'--config.run.steps_per_agent={BUDGET}',
  '--config.run.eval_episodes=2',
  '--config.swarm.num_explorers=3',
  '--config.swarm.explorers_per_node=2',
  '--config.swarm.b=1',
)


# A real swarm.


@pytest.fixture(scope='module')
def run(start_run):
  started = start_run(*SMALL, '--seed=3')
  assert started.wait() == 0, started.output
  started.assert_nothing_is_left()
  return started


@pytest.fixture(scope='module')
def directory(run):
  return run_directory.open(run.directory)


def test_a_swarm_of_ddpg_uses_its_budget(run, directory):
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 3 * BUDGET
  assert summary['totals']['learner_steps'] > 0
  run.assert_no_traceback()


def test_its_config_says_which_agent_explored(directory):
  config = directory.config()
  assert config['agent_name'] == 'pso_ddpg'
  assert config['environment'] == 'InvertedPendulum-v5'
  assert config['swarm']['num_explorers'] == 3


def test_explorers_report_the_losses_of_policy_and_critic(directory):
  rows = directory.metrics('node_explorer')
  assert {row['node'] for row in rows} == {'explorer/0', 'explorer/1'}
  for name in ('loss', 'policy_loss', 'policy_saturation', 'star_distance'):
    values = [row[name] for row in rows if name in row]
    assert values and np.isfinite(values).all(), name


def test_the_kept_star_is_a_policy_that_plays(directory):
  agent = ddpg.DDPG(
    ddpg.Config(**NETWORK), environments.spec('InvertedPendulum-v5')
  )
  with np.load(directory.checkpoints / 'star.npz') as star:
    theta, version = star['theta'], int(star['version'])
  assert version == directory.metrics('star')[-1]['version'] >= 1
  # Policy and critic: theta_star pulls both.
  assert theta.shape == (agent.layout.size,) and np.isfinite(theta).all()
  kept = playing.load(directory)
  assert kept.what.startswith('theta_star version')
  actions = kept.policy()(np.ones((5, 4), np.float32))
  assert actions.shape == (5, 1) and (np.abs(actions) <= 1).all()


# What cannot work.

REFUSED = {
  'discrete actions': (
    ['--config.environment=CartPole-v1'],
    ['CartPole-v1 takes 2 discrete actions, but DDPG needs continuous'],
  ),
  'unbounded actions': (
    ['--config.environment=unbounded_environment:Unbounded-v0'],
    ['Unbounded-v0', 'action_space='],
  ),
  'too few steps': (
    ['--config.run.steps_per_agent=100'],
    ['learning begins after 1005 steps'],
  ),
  'a number of another agent': (
    ['--config.agent.epsilon=0.1'],
    ['agent.epsilon'],
  ),
}


@pytest.fixture(scope='module')
def answers(run_commands, tmp_path_factory):
  cwd = str(tmp_path_factory.mktemp('cwd'))
  found = run_commands(
    [
      {'argv': [AGENT, *argv], 'cwd': cwd, 'mode': 'no_start'}
      for argv, _ in REFUSED.values()
    ]
  )
  return dict(zip(REFUSED, found, strict=True))


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_a_command_that_cannot_work_is_refused(answers, name):
  answer = answers[name]
  assert answer['code'] == commands.USAGE, answer
  assert answer['stderr'].startswith('error: ')
  for part in REFUSED[name][-1]:
    assert part in answer['stderr']
