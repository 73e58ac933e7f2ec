"""run_swarm.py with D4PG: its presets, a real swarm, and what is refused."""

import json

import numpy as np
import pytest

from agents import d4pg
from agents.swarm import explorers
from configs import d4pg as d4pg_configs
from configs import pso_d4pg
from launch import command_line
from launch import evaluate
from launch import experiment
from launch.topologies import swarm as swarm_topology
from run_records import run_directory

CONFIG = 'configs/pso_d4pg.py:pendulum'
BUDGET = 600


@pytest.mark.parametrize('preset', sorted(pso_d4pg.PRESETS))
def test_a_preset_can_be_run(preset):
  config = pso_d4pg.get_config(preset)
  agent_config = command_line.make(d4pg.Config, config.agent)
  swarm_config = command_line.make(explorers.Config, config.swarm)
  spec = command_line.environment_spec(config.environment)
  made = experiment.Experiment(
    make_agent=lambda: d4pg.D4PG(agent_config, spec),
    environment=config.environment,
    num_agents=swarm_config.num_explorers,
    max_replay_size=agent_config.max_replay_size,
    min_replay_size=agent_config.min_replay_size,
    env_steps_per_update=agent_config.env_steps_per_update,
    run=command_line.make(experiment.RunConfig, config.run),
  )
  assert swarm_topology.build(made, swarm_config).groups
  # The rule of the default supervisor: any claim after 2 b confirmations.
  assert swarm_config.idle_episodes == 2 * swarm_config.b
  # An explorer is the plain agent.
  assert config.agent == d4pg_configs.get_config(preset).agent


@pytest.fixture(scope='module')
def directory(start_run, request):
  run = start_run(
    f'--config={request.config.rootpath}/{CONFIG}',
    '--config.agent.policy_sizes=(16,)',
    '--config.agent.critic_sizes=(16,)',
    '--config.agent.min_replay_size=100',
    f'--config.run.steps_per_agent={BUDGET}',
    '--config.run.eval_episodes=2',
    '--config.swarm.num_explorers=2',
    '--config.swarm.claim_episodes=1',
    '--config.swarm.b=1',
  )
  assert run.wait() == 0, run.output
  run.assert_nothing_is_left()
  return run_directory.open(run.directory)


def test_a_swarm_of_d4pg_uses_its_budget_and_its_star_plays(directory):
  summary = directory.summary()
  assert summary['outcome'] == 'budget'
  assert summary['totals']['actor_steps'] == 2 * BUDGET
  assert summary['totals']['learner_steps'] > 0
  for log in directory.logs.glob('*.log'):
    assert 'Traceback' not in log.read_text(), log.read_text()
  assert directory.config()['agent_name'] == 'pso_d4pg'
  # Of the categorical critic, in the explorers.
  rows = [r for r in directory.metrics('node_explorer') if 'loss' in r]
  assert rows and np.isfinite([r['target_clipped'] for r in rows]).all()
  kept = evaluate.load(directory)
  assert isinstance(kept.agent, d4pg.D4PG)
  assert kept.what.startswith('theta_star version')
  assert kept.policy()(np.ones((5, 3), np.float32)).shape == (5, 1)


# What a command line means.


@pytest.fixture(scope='module')
def answers(run_commands, request, directory, tmp_path_factory):
  cwd = str(request.config.rootpath)
  config = f'--config={CONFIG}'
  kept = {}
  for name, more in (('with actors', {'actors': {}}), ('baseline', {})):
    kept[name] = run_directory.create(
      tmp_path_factory.mktemp('kept') / 'run',
      {
        **{
          key: value
          for key, value in directory.config().items()
          if key != 'swarm'
        },
        'agent_name': 'd4pg',
        'num_agents': 3,
        **more,
      },
      {},
      min_free_bytes=0,
    ).path
  cases = {
    'baseline': [config, '--baseline'],
    'swarm resumed': [f'--resume={directory.path}'],
    'baseline resumed': [f'--resume={kept["baseline"]}'],
    'with actors resumed': [f'--resume={kept["with actors"]}'],
  }
  found = run_commands(
    [{'argv': argv, 'cwd': cwd, 'mode': 'resolve'} for argv in cases.values()]
  )
  return dict(zip(cases, found, strict=True))


@pytest.mark.parametrize(
  'name, agent, agents',
  [
    ('baseline', 'd4pg', 1),
    ('baseline resumed', 'd4pg', 3),
    ('swarm resumed', 'pso_d4pg', None),
  ],
)
def test_a_command_means_the_agent_of_its_config(answers, name, agent, agents):
  assert answers[name]['code'] == 0, answers[name]['stderr']
  found = json.loads(answers[name]['stdout'])
  assert found['agent'] == found['config']['agent_name'] == agent
  assert found['config'].get('num_agents') == agents
  assert ('swarm' in found['config']) == (agents is None)


def test_a_run_with_actors_is_not_resumed_as_a_baseline(answers):
  answer = answers['with actors resumed']
  assert answer['code'] == command_line.USAGE, answer
  (line,) = answer['stderr'].splitlines()
  assert 'was started with actors' in line, line
  assert 'launch/run_d4pg.py' in line
