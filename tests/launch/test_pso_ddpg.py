"""run_swarm.py with DDPG: its presets, a real swarm, and what is refused."""

import json

import numpy as np
import pytest

from agents import ddpg
from agents.swarm import explorers
from configs import pso_ddpg
from environment_loops import environments
from launch import command_line
from launch import experiment
from launch.topologies import swarm as swarm_topology
from run_records import run_directory

CONFIG = '--config=configs/pso_ddpg.py:inverted_pendulum'
NETWORK = {'policy_sizes': (16,), 'critic_sizes': (16,)}
BUDGET = 400
SMALL = (
  CONFIG,
  *(f'--config.agent.{name}={sizes}' for name, sizes in NETWORK.items()),
  '--config.agent.min_replay_size=50',
  f'--config.run.steps_per_agent={BUDGET}',
  '--config.run.eval_episodes=2',
  '--config.swarm.num_explorers=3',
  '--config.swarm.explorers_per_node=2',
  '--config.swarm.b=1',
)


# Presets.


@pytest.mark.parametrize('preset', sorted(pso_ddpg.PRESETS))
def test_a_preset_can_be_run(preset):
  config = pso_ddpg.get_config(preset)
  agent_config = command_line.make(ddpg.Config, config.agent)
  swarm_config = command_line.make(explorers.Config, config.swarm)
  spec = command_line.environment_spec(config.environment)
  made = experiment.Experiment(
    make_agent=lambda: ddpg.DDPG(agent_config, spec),
    environment=config.environment,
    num_agents=swarm_config.num_explorers,
    max_replay_size=agent_config.max_replay_size,
    min_replay_size=agent_config.min_replay_size,
    env_steps_per_update=agent_config.env_steps_per_update,
    run=command_line.make(experiment.RunConfig, config.run),
  )
  assert swarm_topology.build(made, swarm_config).groups
  # The rule of the specs: any claim gets its trial after 2 b confirmations.
  assert swarm_config.idle_episodes == 2 * swarm_config.b


# A real swarm.


@pytest.fixture(scope='module')
def run(start_run, request):
  started = start_run(
    f'--config={request.config.rootpath}/{CONFIG.partition("=")[2]}',
    *SMALL[1:],
    '--seed=3',
  )
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
  for log in directory.logs.glob('*.log'):
    assert 'Traceback' not in log.read_text(), log.read_text()


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
  actions = agent.greedy(theta)(np.ones((5, 4), np.float32))
  assert actions.shape == (5, 1) and (np.abs(actions) <= 1).all()


# What a command line means.

RESOLVED = {
  'swarm': [CONFIG],
  'baseline': [CONFIG, '--baseline', '--num_agents=3'],
  'default': [],
}
REFUSED = {
  'discrete actions': (
    [CONFIG, '--config.environment=CartPole-v1'],
    ['CartPole-v1 takes 2 discrete actions, but DDPG needs continuous'],
  ),
  'discrete actions, baseline': (
    [CONFIG, '--config.environment=CartPole-v1', '--baseline'],
    ['CartPole-v1 takes 2 discrete actions'],
  ),
  'unbounded actions': (
    [CONFIG, '--config.environment=unbounded_environment:Unbounded-v0'],
    ['Unbounded-v0 takes unbounded actions', 'TransformAction(env, '],
  ),
  'prioritized replay': (
    [CONFIG, '--config.agent.prioritized=True'],
    ['agent.prioritized=True needs a priority for each transition'],
  ),
  'too few steps': (
    [CONFIG, '--config.run.steps_per_agent=100'],
    ['learning begins after 1001 steps'],
  ),
  'a number of another agent': (
    [CONFIG, '--config.agent.epsilon=0.1'],
    ["no setting 'epsilon'"],
  ),
  'another agent_name': (
    [CONFIG, '--config.agent_name=pso_impala'],
    ["agent_name='pso_impala'", "'pso_ddpg', 'pso_dqn', 'pso_ppo']"],
  ),
  'no such preset': (
    ['--config=configs/pso_ddpg.py:cartpole'],
    ["There is no preset 'cartpole'", "'hopper'"],
  ),
}


@pytest.fixture(scope='module')
def answers(run_commands, request, directory):
  cwd = str(request.config.rootpath)
  cases = {
    name: {'argv': argv, 'cwd': cwd, 'mode': 'resolve'}
    for name, argv in RESOLVED.items()
  }
  for name, (argv, _) in REFUSED.items():
    cases[name] = {'argv': argv, 'cwd': cwd, 'mode': 'no_start'}
  resume = [f'--resume={directory.path}', '--config.run.steps_per_agent=900']
  for name, argv in (
    ('resumed', resume),
    ('resumed as two words', [*resume[0].split('='), resume[1]]),
  ):
    cases[name] = {'argv': argv, 'cwd': cwd, 'mode': 'resolve'}
  found = run_commands(list(cases.values()))
  return dict(zip(cases, found, strict=True))


def _resolved(answers, name):
  assert answers[name]['code'] == 0, answers[name]['stderr']
  found = json.loads(answers[name]['stdout'])
  assert found['agent'] == found['config']['agent_name']
  return found


def test_the_config_file_says_which_agent_explores(answers):
  found = _resolved(answers, 'swarm')
  assert found['agent'] == 'pso_ddpg'
  assert found['config']['swarm']['num_explorers'] == 4
  assert 'critic_learning_rate' in found['config']['agent']
  assert _resolved(answers, 'default')['agent'] == 'pso_dqn'


def test_the_baseline_is_plain_ddpg_with_the_same_numbers(answers):
  found, swarm_found = (
    _resolved(answers, name) for name in ('baseline', 'swarm')
  )
  assert found['agent'] == 'ddpg'
  assert found['config']['num_agents'] == 3
  assert 'swarm' not in found['config']
  for section in ('agent', 'run', 'environment'):
    assert found['config'][section] == swarm_found['config'][section]


@pytest.mark.parametrize('name', ['resumed', 'resumed as two words'])
def test_a_resumed_run_keeps_its_agent_without_a_config(answers, name):
  found = _resolved(answers, name)
  assert found['agent'] == 'pso_ddpg'
  assert found['config']['agent']['policy_sizes'] == [16]
  assert found['config']['run']['steps_per_agent'] == 900
  assert found['config']['seed'] == 3


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_a_command_that_cannot_work_is_refused_in_one_line(answers, name):
  answer = answers[name]
  assert answer['code'] == command_line.USAGE, answer
  (line,) = answer['stderr'].splitlines()
  assert line.startswith('error: ')
  for part in REFUSED[name][-1]:
    assert part in line
