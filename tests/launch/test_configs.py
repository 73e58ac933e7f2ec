"""Presets, and what a command line makes of them."""

import dataclasses
import json

import pytest

from launch import cell as cell_lib
from launch import needs
from launch import registry
from launch import session
from murmuration import choices
from run_records import commands
from run_records import settings

PRESETS = [
  (name, preset)
  for name in registry.agents()
  for preset in registry.agent(name).presets
]


@pytest.mark.parametrize('name, preset', PRESETS)
def test_a_preset_can_be_run_on_64_gb(name, preset, monkeypatch):
  monkeypatch.setattr(needs, 'memory_bytes', lambda: 64 * 10**9)
  cell = cell_lib.resolve(name, preset)
  needs.check(cell.experiment, cell.build(), cell.own_bytes)
  for section, config in cell.sections.items():
    if section != 'environment':
      assert set(cell.config[section]) == set(settings.names(type(config)))
  swarm = cell.sections.get('swarm')
  # The rule of the default supervisor: any claim after 2 b confirmations.
  assert swarm is None or swarm.idle_episodes == 2 * swarm.b


@pytest.mark.parametrize('name', registry.agents())
def test_a_run_is_made_again_from_its_config_json(name):
  cell = cell_lib.resolve(name, seed=3)
  again = cell_lib.resume(json.loads(json.dumps(cell.config)))
  assert again.config == cell.config
  assert again.sections == cell.sections
  assert again.experiment.seed == 3


def test_a_field_newer_than_the_run_has_its_default_not_the_preset_s():
  kept = cell_lib.resolve('apex_dqn').config
  assert kept['actors'].pop('transitions_per_item') == 2
  again = cell_lib.resume(kept, {'actors.num_actors': '5'})
  assert again.config['actors']['transitions_per_item'] == 1
  assert again.config['actors']['num_actors'] == 5


@pytest.mark.parametrize(
  'agent, topology, overrides, said',
  [
    ('dqn', None, {'agent.hidden_sizes': '(8,)'}, 'a network of 58 parameters'),
    ('dqn', None, {'environment': 'Acrobot-v1'}, 'a network of'),
    ('dqn', None, {'agent.optimizer': 'sgd'}, 'the optimizer'),
    ('dqn', None, {'single.num_agents': '3'}, '3 agents instead of 1'),
    ('dqn', 'gossip', {'gossip.num_learners': '2'}, '2 agents instead of 4'),
    ('pso_dqn', None, {'swarm.explorers_per_node': '3'}, 'explorers_per_node'),
    ('gorila_dqn', None, {'server.num_shards': '2'}, 'server.num_shards'),
    ('gorila_dqn', None, {'server.num_learners': '2'}, 'num_learners=2 (each'),
    ('apex_dqn', None, {'actors.transitions_per_item': '1'}, 'per_item'),
    ('apex_dqn', None, {'actors.shards': '2'}, 'actors.shards'),
    ('dqn', None, {'agent.gamma': '0.9'}, 'agent.gamma=0.9 (sums of 5'),
    ('impala:cartpole', None, {'agent.batch_size': '16'}, 'rates fall'),
    ('ppo:hopper', None, {'agent.epochs': '4'}, 'rates fall'),
    ('es_mlp', None, {'evolution.table_seed': '5'}, 'evolution.table_seed'),
    ('dqn', None, {'agent.prioritized': 'True'}, 'replay with priorities'),
    ('apex_dqn', None, {'agent.prioritized': 'False'}, 'without priorities'),
    ('dqn', None, {'run.deterministic': 'True'}, 'run.deterministic=True'),
    ('pso_dqn', None, {'run.replay': 'node'}, 'run.replay=node'),
    ('pso_dqn', None, {'swarm.supervisor': 'literal'}, 'swarm.supervisor'),
    ('ddpg', None, {'agent.policy_delay': '2'}, 'with parameters that move'),
    (
      'ddpg:td3_pendulum',
      None,
      {'agent.policy_delay': '1'},
      'with no parameters that move',
    ),
    (
      'ddpg:inverted_pendulum',
      None,
      {'environment': 'InvertedPendulum-v4'},
      'environment=InvertedPendulum-v4',
    ),
    (
      'acme_dqn',
      None,
      {'environment': 'Acrobot-v1'},
      'environment=Acrobot-v1',
    ),
  ],
)
def test_what_no_checkpoint_fits_is_refused_before_the_run_is_touched(
  agent, topology, overrides, said
):
  agent, _, preset = agent.partition(':')
  kept = json.loads(
    json.dumps(cell_lib.resolve(agent, preset, topology).config)
  )
  with pytest.raises(ValueError, match='cannot be gone on from') as caught:
    cell_lib.resume(kept, overrides)
  assert said in str(caught.value)
  assert next(iter(overrides)) in str(caught.value)


@pytest.mark.parametrize(
  'agent, overrides',
  [
    ('dqn', {'agent.learning_rate': '0.1', 'run.tf_threads': '2'}),
    ('dqn', {'agent.n_step': '3', 'agent.max_replay_size': '9000'}),
    ('sac', {'agent.gamma': '0.9'}),
    ('ppo', {'agent.gamma': '0.9', 'agent.epochs': '4'}),
    ('ppo:hopper', {'agent.anneal_env_steps': '900000'}),
    ('gorila_dqn', {'server.num_learners': '6', 'server.max_staleness': '4'}),
    ('a3c', {'server.num_learners': '2'}),
    ('apex_dqn', {'actors.num_actors': '3', 'actors.envs_per_actor': '4'}),
    ('apex_dqn', {'run.replay': 'node'}),
    ('impala', {'actors.num_actors': '3', 'actors.queue_batches': '2'}),
    ('impala', {'actors.envs_per_actor': '4'}),
    ('impala', {'agent.unroll_length': '5', 'agent.batch_size': '32'}),
    ('pso_dqn', {'swarm.b': '5', 'swarm.inertia': '0.3'}),
    ('acme_dqn', {'run.steps_per_agent': '90000'}),
  ],
)
def test_what_any_checkpoint_fits_may_change(agent, overrides):
  agent, _, preset = agent.partition(':')
  kept = json.loads(json.dumps(cell_lib.resolve(agent, preset).config))
  assert cell_lib.resume(kept, overrides).config != kept


def test_who_learns_from_a_data_set_has_no_replay_that_would_not_fit():
  kept = cell_lib.resolve('dqn', topology='offline').config
  changed = cell_lib.resume(kept, {'agent.prioritized': 'True'}).config
  assert changed['agent']['prioritized']


def test_another_environment_has_not_the_target_of_the_preset():
  assert cell_lib.resolve('ppo').config['run']['target_return'] == 475.0
  for overrides, target in (
    ({'environment': 'CartPole-v1'}, 475.0),
    ({'environment': 'MountainCar-v0'}, None),
    ({'environment': 'MountainCar-v0', 'run.target_return': '-90'}, -90.0),
  ):
    for preset in ('', 'cartpole'):
      config = cell_lib.resolve('ppo', preset, overrides=overrides).config
      assert config['run']['target_return'] == target
  # Nor where the environment has a preset, and another one is named.
  overrides = {'environment': 'Acrobot-v1'}
  config = cell_lib.resolve('ppo', 'cartpole', overrides=overrides).config
  assert config['run'] == {
    **cell_lib.resolve('ppo', 'cartpole').config['run'], 'target_return': None,
  }  # fmt: skip


def test_an_environment_without_a_preset_s_name_has_its_own():
  config = cell_lib.resolve(
    'dqn', overrides={'environment': 'Acrobot-v1'}
  ).config
  assert config == cell_lib.resolve('dqn', 'acrobot').config
  assert config == choices.cell('dqn', 'Acrobot-v1', None, {}, None, 0).config
  assert config != cell_lib.resolve('dqn').config


@dataclasses.dataclass(frozen=True)
class _WithoutTheLeast:
  max_replay_size: int = 100


@pytest.mark.parametrize(
  'config, missing',
  [
    (_WithoutTheLeast, 'no min_replay_size:'),
    (dataclasses.make_dataclass('Bare', []), 'no max_replay_size and no min_'),
  ],
)
def test_replay_without_a_size_is_refused(monkeypatch, config, missing):
  dqn = registry.agent('dqn')
  own = dataclasses.replace(
    dqn,
    agent=lambda unused, spec: dqn.agent(dqn.config(), spec),
    config=config,
    presets={'': {'environment': 'CartPole-v1'}},
  )
  monkeypatch.setattr(registry, 'agent', lambda name: own)
  with pytest.raises(ValueError, match=f'dqn learns from tra.* {missing}'):
    cell_lib.resolve('dqn')


@pytest.mark.parametrize(
  'changes', [{'agent': {'env_steps_per_update': 1}}, {'topology': None}]
)
def test_a_run_of_an_older_version_is_refused(changes):
  kept = {**cell_lib.resolve('dqn').config, **changes}
  kept = {name: value for name, value in kept.items() if value is not None}
  with pytest.raises(ValueError, match='older version'):
    cell_lib.resume(kept)


def test_an_update_has_the_same_samples_in_every_topology():
  alone = cell_lib.resolve('d4pg', topology='single_process')
  actors = cell_lib.resolve('d4pg', topology='actor_learner')
  swarm = cell_lib.resolve('pso_d4pg')
  assert alone.sections['pace'] == actors.sections['pace']
  assert alone.sections['pace'] == swarm.sections['pace']
  # Four steps for an update of 64 transitions.
  assert alone.experiment.pace.steps_per_update(64) == 4.0


# Both scripts: run_swarm.py is run.py with other words.

RESOLVED = {
  'the default': [],
  'a preset': ['--config=acrobot'],
  'a preset as two words': ['--config', 'acrobot'],
  'a file and a preset': ['--config=configs/pso_dqn.py:acrobot'],
  'a file': ['--config=configs/pso_ddpg.py'],
  'overrides': [
    '--config=acrobot',
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
  'the baseline': ['--baseline', '--num_agents=3'],
}
REFUSED = {
  'misspelt field': (['--config.agent.learning_rat=1'], '"agent.learning_rate'),
  'misspelt section': (['--config.swarn.b=2'], '"swarm.b"'),
  'no such field': (['--config.agent.colour=3'], '--list-settings'),
  'misspelt flag': (['--sed=1'], 'Did you mean --seed?'),
  'misspelt preset': (['--config=acrobatt'], "'acrobot'"),
  'no such config file': (['--config=nowhere.py'], 'nowhere'),
  'a word for a number': (['--config.swarm.b=two'], "swarm.b='two'"),
  'a word for a number or none': (
    ['--config.swarm.c_max=big'],
    "c_max='big' is not a number or None",
  ),
  'a fraction for a whole number': (['--config.swarm.b=1.5'], "b='1.5'"),
  'a word for a truth': (['--config.agent.double=maybe'], 'True or False'),
  'a stray word': (['acrobot'], "'acrobot' is one word too many"),
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
  'no such name': (['json:load_'], "Did you mean 'json:load'?"),
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
  'a seed as a setting': (['dqn', '--config.seed=3'], '--seed=VALUE'),
  'a topology as a setting': (
    ['dqn', '--config.topology=swarm'],
    '--topology=VALUE',
  ),
  'a queue of replay': (
    ['d4pg', '--config.actors.queue_batches=2'],
    'actors.queue_batches would change nothing here: it is of unrolls',
  ),
  'a server that is not there': (
    ['impala', '--config.actors.inference_max_batch=4'],
    '--config.actors.inference=central',
  ),
  'a goal that the rules as printed never confirm': (
    [
      'pso_dqn',
      '--config.swarm.supervisor=literal',
      '--config.run.target_return=475',
    ],
    'run.target_return would change nothing here: the rules of',
  ),
  'a pull of agents without rollouts': (
    ['pso_dqn', '--config.swarm.pull_every=minibatch'],
    'swarm.pull_every would change nothing here',
  ),
  'others that are waited for too long': (
    [
      'a3c',
      '--config.server.synchronous=True',
      '--config.server.sync_timeout_s=1000',
    ],
    'at most 250 seconds',
  ),
  'updates in a call of an agent that says them': (
    ['ppo', '--config.run.updates_per_call=4'],
    'run.updates_per_call would change nothing here: ppo makes 80',
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
  'a preset as a flag': (['dqn', '--config=acrobot'], 'AGENT:PRESET'),
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
  (directory / 'configs').symlink_to(session.root() / 'configs')
  cases = {**RESOLVED, **{name: argv for name, (argv, _) in REFUSED.items()}}
  found = _answers(run_commands, directory, cases, 'resolve', 'run_swarm.py')
  cases = {**SHOWN, **{name: argv for name, (argv, _) in OTHERS.items()}}
  found.update(_answers(run_commands, directory, cases, 'no_start', 'run.py'))
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


def test_a_preset_of_the_swarm_can_be_named_in_three_ways(answers):
  found = [
    _resolved(answers, name)
    for name in ('a preset', 'a preset as two words', 'a file and a preset')
  ]
  assert found[0] == found[1] == found[2]
  assert found[0]['config']['environment'] == 'Acrobot-v1'
  assert found[0]['config']['agent']['target_update_period'] == 200
  assert _resolved(answers, 'a file')['agent'] == 'pso_ddpg'


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
  assert found['agent'] == found['config']['agent_name'] == 'dqn'
  assert found['config']['topology'] == 'single_process'
  assert found['config']['single']['num_agents'] == 3
  assert 'swarm' not in found['config']
  for section in ('agent', 'pace', 'run', 'environment'):
    assert found['config'][section] == swarm_config[section]


@pytest.mark.parametrize('name', sorted({**REFUSED, **OTHERS}))
def test_a_wrong_command_says_what_is_meant_and_exits_with_2(answers, name):
  answer = answers[name]
  assert answer['code'] == commands.USAGE, answer
  assert answer['stderr'].startswith('error: ')
  assert len(answer['stderr'].splitlines()) == 1, answer['stderr']
  assert {**REFUSED, **OTHERS}[name][1] in answer['stderr']


def test_all_settings_are_listed_with_value_bounds_and_comment(answers):
  text = answers['settings']['stdout']
  cell = cell_lib.resolve('d4pg', 'hopper')
  for section, values in cell.config.items():
    if isinstance(values, dict):
      for name in values:
        assert f'--config.{section}.{name}=' in text, name
  assert (
    '--config.agent.sigma=0.5\n'
    '    of the noise, in units of [-1, 1] (a number that is not negative)\n'
  ) in text
  assert '--config.agent.critic_sizes=(256, 256)\n' in text
  assert '--config.environment=Hopper-v5' in text


def test_help_shows_examples_and_the_names_that_there_are(answers):
  text = answers['help']['stdout']
  assert 'launch/run.py impala:cartpole --topology=swarm' in text
  for names in (registry.agents(), registry.TOPOLOGIES, ('local_mt',)):
    for name in names:
      assert name in text
  assert 'vertex_ai' not in text


@pytest.mark.parametrize('code', [0, 3])
def test_an_agent_s_module_that_exits_is_refused_and_not_obeyed(
  code, tmp_path, monkeypatch
):
  name = f'exits_with_{code}'
  (tmp_path / f'{name}.py').write_text(f'raise SystemExit({code})\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=f'SystemExit: {code}'):
    registry.agent(f'{name}:Any')
