"""What the commands make of settings, and which they refuse."""

import json

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import commands

# Both scripts: run_swarm.py is run.py with an agent if none is named.

RESOLVED = {
  'the default': [],
  'a preset': ['pso_dqn:acrobot'],
  'another swarm': ['pso_ddpg'],
  'overrides': [
    'pso_dqn:acrobot',
    '--config.swarm.b=5',
    '--config.swarm.c_max=None',
    '--config.agent.learning_rate',
    '0.01',
    '--config.agent.hidden_sizes=(32,)',
    '--config.run.target_return=None',
    '--config.run.wall_clock_s=90',
    '--seed=7',
    '--lp_launch_type=local_mt',
    '--run_dir=somewhere',
  ],
}
REFUSED = {
  'misspelt field': (['--config.agent.learning_rat=1'], 'agent.learning_rate '),
  'misspelt section': (['--config.swarn.b=2'], 'swarn.b'),
  'no such field': (['--config.agent.colour=3'], '--list-settings'),
  'misspelt flag': (['--sed=1'], 'Did you mean --seed?'),
  'misspelt preset': (['pso_dqn:acrobatt'], "'acrobot'"),
  'a word for a number': (['--config.swarm.b=two'], 'swarm.b'),
  'a word for a number or none': (['--config.swarm.c_max=big'], 'swarm.c_max'),
  'a fraction for a whole number': (['--config.swarm.b=1.5'], 'swarm.b'),
  'a word for a truth': (['--config.agent.double=maybe'], 'agent.double'),
  'a stray word': (['pso_dqn', 'acrobot'], "'acrobot' is one word too many"),
  'an unknown engine': (['--lp_launch_type=local_mpp'], "mean 'local_mp'"),
  'a negative seed': (['--seed=-1'], 'seed'),
  'a setting without a value': (['--config.swarm.b'], 'needs a value'),
}
# Of run.py.
OTHERS = {
  'a budget that is shared': (
    [
      'gorila_dqn',
      '--config.server.num_learners=4',
      '--config.run.steps_per_agent=2000',
    ],
    'server.num_learners=4 share 2000 steps',
  ),
  'no agent': ([], 'which agent?'),
  'misspelt agent': (['impla'], "Did you mean 'impala'?"),
  'misspelt preset of an agent': (['impala:carpole'], "mean 'cartpole'?"),
  'misspelt topology': (['dqn', '--topology=swrm'], "Did you mean 'swarm'?"),
  'no agent in a module': (['json:loads'], 'json:loads is a function'),
  'no such name': (['json:load_'], "no agent 'json:load_'. json has none."),
  'no topology in a module': (
    ['dqn', '--topology=json:loads'],
    'without SECTION',
  ),
  'what a topology would ignore': (
    ['impala', '--topology=single_process', '--config.actors.num_actors=3'],
    'actors.num_actors is a setting of actor_learner; this run is '
    'single_process',
  ),
  'what nobody has who acts': (
    ['dqn', '--config.offline.data=out'],
    'or set --topology=offline',
  ),
  'a seed as a setting': (['dqn', '--config.seed=3'], '--config.seed'),
  'priorities of uniform replay': (
    ['dqn', '--config.agent.priority_exponent=0.5'],
    'agent.priority_exponent would change nothing here: it needs '
    'agent.prioritized=True, and that is False. Leave it out.',
  ),
  'a schedule of a ladder': (
    ['apex_dqn', '--config.agent.epsilon_start=0.5'],
    "it needs agent.exploration='schedule', and that is 'ladder'",
  ),
  'a limit of noise that is not there': (
    ['ddpg', '--config.agent.smoothing_limit=0.3'],
    'it needs agent.smoothing_sigma, and that is 0.0',
  ),
  'an epsilon of another optimizer': (
    ['impala:cartpole', '--config.agent.rmsprop_epsilon=0.1'],
    "it needs agent.optimizer='rmsprop', and that is",
  ),
  'bounds of what is not corrected': (
    ['a2c', '--config.agent.rho_bar=2.0'],
    "it needs agent.correction='vtrace'",
  ),
  'a Gaussian of discrete actions': (
    ['impala:cartpole', '--config.agent.free_sigma=True'],
    'agent.free_sigma would change nothing here: actions of CartPole-v1 are',
  ),
  'a queue of replay': (
    ['d4pg', '--config.actors.queue_batches=2'],
    'actors.queue_batches would change nothing here: it is of unrolls',
  ),
  'a server that is not there': (
    ['impala', '--config.actors.inference_max_batch=4'],
    "it needs actors.inference='central', and that is 'local'",
  ),
  'a pull of agents without rollouts': (
    ['pso_dqn', '--config.swarm.pull_every=minibatch'],
    'swarm.pull_every would change nothing here',
  ),
  'updates in a call of an agent that says them': (
    ['ppo', '--config.run.updates_per_call=4'],
    'run.updates_per_call would change nothing here: ppo makes 80',
  ),
  'when parameters are fetched by who acts in whole rollouts': (
    ['ppo', '--config.actors.update_period=1'],
    'actors.update_period would change nothing here: an on-policy agent',
  ),
  'checkpoints of a queue': (
    ['impala', '--config.run.replay_checkpoint_s=1'],
    'run.replay_checkpoint_s would change nothing here: it learns from',
  ),
  'more steps than a number holds': (
    ['dqn', f'--config.run.steps_per_agent=1{400 * "0"}'],
    'run.steps_per_agent',
  ),
  'niceness of one process': (
    ['dqn', '--config.run.background_niceness=1'],
    'one process does all the work',
  ),
  'a pace of unrolls': (
    ['impala', '--config.pace.samples_per_insert=3'],
    'of agents that sample replay',
  ),
  'replay of its own beside one process': (
    ['dqn', '--config.run.replay=node'],
    "run.replay='node': single_process",
  ),
  'one loop that runs freely': (
    ['dqn', '--config.pace.samples_per_insert=None'],
    'one loop does both, in turns',
  ),
  'a preset as a flag': (['dqn', '--config=acrobot'], '--config'),
  'no run to resume': (['--resume='], '--resume= names no run'),
  'nothing there to resume': (['--resume=nowhere'], 'nowhere'),
}
SHOWN = {
  'settings': ['d4pg:hopper', '--config.agent.sigma=0.5', '--list-settings'],
  'help': ['--help'],
}


def _answers(run_commands, directory, cases, mode, script):
  answers = run_commands(
    [
      {'argv': argv, 'cwd': str(directory), 'mode': mode}
      for argv in cases.values()
    ],
    script=script,
  )
  return dict(zip(cases, answers, strict=True))


@pytest.fixture(scope='module')
def answers(run_commands, tmp_path_factory):
  directory = tmp_path_factory.mktemp('commands')
  cases = {**RESOLVED, **{name: argv for name, (argv, _) in REFUSED.items()}}
  found = _answers(run_commands, directory, cases, 'resolve', 'run_swarm.py')
  cases = {**SHOWN, **{name: argv for name, (argv, _) in OTHERS.items()}}
  found.update(_answers(run_commands, directory, cases, 'no_start', 'run.py'))
  assert not list(directory.iterdir())
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


def test_a_preset_and_another_swarm_can_be_named(answers):
  found = _resolved(answers, 'a preset')
  assert found['config']['environment'] == 'Acrobot-v1'
  assert found['config']['agent']['target_update_period'] == 200
  assert _resolved(answers, 'another swarm')['agent'] == 'pso_ddpg'


def test_single_values_change_and_the_others_stay(answers):
  preset = _resolved(answers, 'a preset')['config']
  found = _resolved(answers, 'overrides')
  assert (found['engine'], found['run_dir']) == ('local_mt', 'somewhere')
  preset['swarm'].update(b=5, c_max=None)
  preset['agent'].update(learning_rate=0.01, hidden_sizes=[32])
  preset['run'].update(target_return=None, wall_clock_s=90)
  preset['seed'] = 7
  assert found['config'] == preset


@pytest.mark.parametrize('name', sorted({**REFUSED, **OTHERS}))
def test_a_wrong_command_says_what_is_meant_and_exits_with_2(answers, name):
  answer = answers[name]
  assert answer['code'] == commands.USAGE, answer
  assert answer['stderr'].startswith('error: ')
  assert len(answer['stderr'].splitlines()) <= 10, answer['stderr']
  assert {**REFUSED, **OTHERS}[name][1] in answer['stderr']


def test_all_settings_are_listed_with_value_and_comment(answers):
  text = answers['settings']['stdout']
  cell = cell_lib.resolve('d4pg', 'hopper')
  for section, values in cell.config.items():
    if isinstance(values, dict):
      for name in values:
        assert f'--config.{section}.{name} ' in text, name
  said = ' '.join(text.split())
  assert '--config.agent.sigma FLOAT of the noise, in units of' in said
  assert '(default: 0.5)' in said and 'Hopper-v5' in said
  assert 'agent.noise_theta changes nothing here: it needs agent.noise=' in said


def test_help_shows_examples_and_the_names_that_there_are(answers):
  text = answers['help']['stdout']
  assert 'launch/run.py impala:cartpole --topology=swarm' in text
  for names in (registry.agents(), registry.ALL_TOPOLOGIES, ('local_mt',)):
    for name in names:
      assert name in text
  assert 'vertex_ai' not in text
