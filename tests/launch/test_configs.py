"""Presets, and the single values that a command line changes in them."""

import dataclasses
import json

import pytest

from agents import dqn
from agents.swarm import explorers
from configs import pso_dqn
from environment_loops import environments
from launch import command_line
from launch import experiment
from launch import session
from launch.topologies import swarm as swarm_topology

SECTIONS = {
  'agent': dqn.Config,
  'swarm': explorers.Config,
  'run': experiment.RunConfig,
}


@pytest.mark.parametrize('preset', sorted(pso_dqn.PRESETS))
def test_a_preset_can_be_run(preset):
  config = pso_dqn.get_config(preset)
  made = {
    name: command_line.make(constructor, config[name])
    for name, constructor in SECTIONS.items()
  }
  spec = command_line.environment_spec(config.environment)
  assert environments.require_discrete(spec) >= 2
  made_experiment = experiment.Experiment(
    make_agent=lambda: dqn.DQN(made['agent'], spec),
    environment=config.environment,
    num_agents=made['swarm'].num_explorers,
    max_replay_size=made['agent'].max_replay_size,
    min_replay_size=made['agent'].min_replay_size,
    env_steps_per_update=made['agent'].env_steps_per_update,
    run=made['run'],
  )
  assert swarm_topology.build(made_experiment, made['swarm']).groups


@pytest.mark.parametrize('preset', sorted(pso_dqn.PRESETS))
def test_a_preset_has_every_field_of_the_configs_and_no_other(preset):
  config = pso_dqn.get_config(preset)
  assert set(config) == {'environment', *SECTIONS}
  for name, constructor in SECTIONS.items():
    fields = {field.name for field in dataclasses.fields(constructor)}
    assert set(config[name]) == fields


def test_no_preset_is_the_first_one():
  assert pso_dqn.get_config() == pso_dqn.get_config('cartpole')
  assert pso_dqn.get_config('') == pso_dqn.get_config('cartpole')


def test_an_unknown_preset_names_the_known_ones():
  with pytest.raises(ValueError, match=r"'acrobot', 'cartpole'"):
    pso_dqn.get_config('pong')


def test_a_value_that_may_be_none_takes_a_number_or_none_only():
  config = pso_dqn.get_config()
  config.run.wall_clock_s = 10
  assert command_line.make(experiment.RunConfig, config.run).wall_clock_s == 10
  config.swarm.c_max = 'hello'
  with pytest.raises(command_line.UsageError, match="c_max='hello'"):
    command_line.make(explorers.Config, config.swarm)


RESOLVED = {
  'the default': [],
  'a preset': ['--config=acrobot'],
  'a preset as two words': ['--config', 'acrobot'],
  'a file and a preset': ['--config=configs/pso_dqn.py:acrobot'],
  'overrides': [
    '--config=acrobot',
    '--config.swarm.b=5',
    '--config.swarm.c_max=None',
    '--config.agent.learning_rate=0.01',
    '--config.agent.hidden_sizes=(32,)',
    '--config.run.target_return=None',
    '--config.run.wall_clock_s=90',
    '--seed=7',
    '--lp_launch_type=local_mt',
    '--run_dir=somewhere',
  ],
  'the baseline': ['--baseline', '--num_agents=3'],
}
REFUSED = {
  'misspelt field': (['--config.agent.learning_rat=1'], '"learning_rate"'),
  'misspelt section': (['--config.swarn.b=2'], '"swarm"'),
  'no such field': (['--config.agent.colour=3'], "no setting 'colour'"),
  'misspelt flag': (['--sed=1'], 'seed'),
  'misspelt preset': (['--config=acrobatt'], "'acrobot'"),
  'no such config file': (['--config=nowhere.py'], 'nowhere.py'),
  'a word for a number': (['--config.swarm.b=two'], 'swarm.b=two'),
  'a word for a number or none': (['--config.swarm.c_max=big'], "c_max='big'"),
  'a stray word': (['acrobot'], "'acrobot' is no flag"),
  'an unknown engine': (['--lp_launch_type=vertex_ai'], 'local_mp'),
  'a negative seed': (['--seed=-1'], 'seed'),
}


@pytest.fixture(scope='module')
def answers(run_commands, tmp_path_factory):
  directory = tmp_path_factory.mktemp('commands')
  (directory / 'configs').symlink_to(session.root() / 'configs')
  names, cases = [], []
  for name, argv in RESOLVED.items():
    names.append(name)
    cases.append({'argv': argv, 'cwd': str(directory), 'mode': 'resolve'})
  for name, (argv, _) in REFUSED.items():
    names.append(name)
    cases.append({'argv': argv, 'cwd': str(directory)})
  found = dict(zip(names, run_commands(cases), strict=True))
  assert [path.name for path in directory.iterdir()] == ['configs']
  return found


def _resolved(answers, name):
  assert answers[name]['code'] == 0, answers[name]['stderr']
  return json.loads(answers[name]['stdout'])


def test_a_command_without_flags_is_the_swarm_on_cartpole(answers):
  found = _resolved(answers, 'the default')
  assert (found['agent'], found['engine']) == ('pso_dqn', 'local_mp')
  assert found['run_dir'] is None
  assert found['config']['environment'] == 'CartPole-v1'
  assert found['config']['swarm']['num_explorers'] == 31
  assert found['config']['seed'] == 0


def test_a_preset_can_be_named_in_three_ways(answers):
  found = [
    _resolved(answers, name)
    for name in ('a preset', 'a preset as two words', 'a file and a preset')
  ]
  assert found[0] == found[1] == found[2]
  assert found[0]['config']['environment'] == 'Acrobot-v1'
  assert found[0]['config']['agent']['target_update_period'] == 200


def test_single_values_change_and_the_others_stay(answers):
  preset = _resolved(answers, 'a preset')['config']
  found = _resolved(answers, 'overrides')
  assert (found['engine'], found['run_dir']) == ('local_mt', 'somewhere')
  preset['swarm'].update(b=5, c_max=None)
  preset['agent'].update(learning_rate=0.01, hidden_sizes=[32])
  preset['run'].update(target_return=None, wall_clock_s=90)
  preset['seed'] = 7
  assert found['config'] == preset


def test_the_baseline_has_the_same_config_without_a_swarm(answers):
  swarm_config = _resolved(answers, 'the default')['config']
  found = _resolved(answers, 'the baseline')
  assert found['agent'] == 'dqn'
  assert found['config']['num_agents'] == 3
  assert 'swarm' not in found['config']
  for section in ('agent', 'run', 'environment'):
    assert found['config'][section] == swarm_config[section]


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_a_wrong_command_says_what_is_meant_and_exits_with_2(answers, name):
  answer = answers[name]
  assert answer['code'] == command_line.USAGE, answer
  assert answer['stderr'].startswith('error: ')
  assert len(answer['stderr'].splitlines()) == 1, answer['stderr']
  assert REFUSED[name][1] in answer['stderr']
