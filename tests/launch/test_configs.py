"""Presets, configs of cells, and what a resumed run may change of its own."""

import dataclasses
import json

import pytest

from murmuration import choices
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import settings

PRESETS = [
  (name, preset)
  for name in registry.agents()
  for preset in registry.agent(name).presets
]


@pytest.mark.parametrize('name, preset', PRESETS)
def test_the_config_of_a_preset_has_every_setting(name, preset):
  cell = cell_lib.resolve(name, preset)
  for section, config in cell.sections.items():
    if section != 'environment':
      assert set(cell.config[section]) == set(settings.names(type(config)))
  swarm = cell.sections.get('swarm')
  # Any claim gets a trial after 2 b confirmations.
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
  'agent, topology, overrides',
  [
    ('dqn', None, {'agent.hidden_sizes': '(8,)'}),
    ('dqn', None, {'environment': 'Acrobot-v1'}),
    ('dqn', None, {'agent.optimizer': 'sgd'}),
    ('dqn', None, {'agent.n_step': '3'}),
    ('dqn', None, {'agent.gamma': '0.9'}),
    ('dqn', None, {'agent.reward_clip': '1.0'}),
    ('dqn', None, {'agent.prioritized': 'True'}),
    ('dqn', None, {'run.deterministic': 'True'}),
    ('dqn', None, {'single.num_agents': '3'}),
    ('dqn', 'gossip', {'gossip.num_learners': '2'}),
    ('pso_dqn', None, {'swarm.explorers_per_node': '3'}),
    ('pso_dqn', None, {'run.replay': 'node'}),
    ('gorila_dqn', None, {'server.num_shards': '2'}),
    ('gorila_dqn', None, {'server.num_learners': '2'}),
    ('apex_dqn', None, {'actors.transitions_per_item': '1'}),
    ('apex_dqn', None, {'actors.shards': '2'}),
    ('impala:cartpole', None, {'agent.batch_size': '16'}),
    ('ppo:hopper', None, {'agent.epochs': '4'}),
    ('es_mlp', None, {'evolution.table_seed': '5'}),
    ('ddpg', None, {'agent.policy_delay': '2'}),
    ('acme_dqn', None, {'environment': 'Acrobot-v1'}),
  ],
)
def test_what_checkpoints_depend_on_is_refused_before_the_run_is_touched(
  agent, topology, overrides
):
  agent, _, preset = agent.partition(':')
  kept = json.loads(
    json.dumps(cell_lib.resolve(agent, preset, topology).config)
  )
  with pytest.raises(ValueError, match=f'keeps its .*{next(iter(overrides))}'):
    cell_lib.resume(kept, overrides)
  # The same value is no change.
  section, _, name = next(iter(overrides)).partition('.')
  same = str(kept[section][name] if name else kept[section])
  if '[' not in same:
    assert cell_lib.resume(kept, {next(iter(overrides)): same}).config == (
      cell_lib.resume(kept).config
    )


@pytest.mark.parametrize(
  'agent, overrides',
  [
    ('dqn', {'agent.learning_rate': '0.1', 'run.tf_threads': '2'}),
    ('dqn', {'agent.max_replay_size': '9000'}),
    ('ppo:hopper', {'agent.anneal_env_steps': '900000'}),
    ('gorila_dqn', {'server.max_staleness': '4'}),
    ('apex_dqn', {'actors.num_actors': '3', 'actors.envs_per_actor': '4'}),
    ('impala', {'actors.num_actors': '3', 'actors.queue_batches': '2'}),
    ('pso_dqn', {'swarm.b': '5', 'swarm.k': '100'}),
    ('acme_dqn', {'run.steps_per_agent': '90000'}),
  ],
)
def test_a_run_that_goes_on_changes_what_is_on_the_list(agent, overrides):
  agent, _, preset = agent.partition(':')
  kept = json.loads(json.dumps(cell_lib.resolve(agent, preset).config))
  found = cell_lib.resume(kept, overrides).config
  for name in overrides:
    section, _, key = name.partition('.')
    assert found[section][key] != kept[section][key]


def test_what_may_change_exists():
  known = {
    name
    for agent in map(registry.agent, registry.agents())
    for topology in map(registry.topology, registry.ALL_TOPOLOGIES)
    for one in cell_lib.classes(agent, topology).items()
    for name in settings.qualified(*one)
  }
  assert known >= cell_lib.RESUMABLE


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


@pytest.mark.parametrize('code', [0, 3])
def test_an_agent_s_module_that_exits_is_refused_and_not_obeyed(
  code, tmp_path, monkeypatch
):
  name = f'exits_with_{code}'
  (tmp_path / f'{name}.py').write_text(f'raise SystemExit({code})\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=f'SystemExit: {code}'):
    registry.agent(f'{name}:Any')
