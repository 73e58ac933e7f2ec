"""The config that a run has by what a caller chose."""

import ast
import inspect
import re

import numpy as np
import pytest

from murmuration import arguments
from murmuration import choices
from murmuration import runs
from murmuration.agents import base
from murmuration.agents import dqn
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry


def _config(agent, environment=None, topology=None, steps=None, **settings):
  return choices.cell(agent, environment, topology, settings, steps, 0).config


def test_an_environment_brings_its_preset():
  config = _config('ppo', 'Pendulum-v1')
  assert config == cell_lib.resolve('ppo', 'pendulum').config
  assert _config('ppo:pendulum') == config


def test_another_environment_has_no_target():
  config = _config('ppo', 'MountainCar-v0')
  assert config['run']['target_return'] is None
  assert config['agent'] == cell_lib.resolve('ppo').config['agent']


def test_a_rate_that_falls_over_the_run_falls_over_this_one():
  config = _config('impala', 'CartPole-v1', steps=5000)
  assert config['run']['steps_per_agent'] == 5000
  assert config['agent']['anneal_env_steps'] == 5000


def test_a_budget_sets_nothing_that_would_change_nothing():
  config = _config('a2c', 'CartPole-v1', topology='evolution', steps=5000)
  assert config['run']['steps_per_agent'] == 5000


def test_a_setting_may_mend_what_the_preset_cannot():
  with pytest.raises(ValueError, match='takes images'):
    _config('apex_dqn:pong', 'CartPole-v1')
  config = _config('apex_dqn:pong', 'CartPole-v1', network='mlp')
  assert config['agent']['network'] == 'mlp'


def test_a_resumed_run_learns_in_the_steps_that_are_added():
  kept = _config('impala', 'CartPole-v1', steps=5000)
  made = {'actor_steps': 5000, 'learner_steps': 100}
  config = choices.resumed(kept, {}, 3000, made).config
  assert config['run']['steps_per_agent'] == 8000
  # Else the rate would be 0 in all of them.
  assert config['agent']['anneal_env_steps'] == 8000
  chosen = {'anneal_env_steps': 'None'}
  config = choices.resumed(kept, chosen, 3000, made).config
  assert config['agent']['anneal_env_steps'] is None
  assert choices.resumed(kept, {}, None, made).config == kept


@pytest.mark.parametrize('name', ['seed', 'environment', 'topology'])
def test_what_a_resumed_run_is_cannot_change(name):
  kept = _config('dqn')
  with pytest.raises(ValueError, match=f'{name}= is that of the run.'):
    choices.resumed(kept, {name: '4'}, None, {})


@pytest.mark.parametrize('updates', [1250, 500])
def test_a_resumed_run_without_actors_adds_to_the_updates_that_were_made(
  updates,
):
  kept = _config('d4pg', topology='offline', steps=5000)
  # d4pg makes an update in 4 steps; the second was broken off.
  made = {'learner_steps': updates}
  config = choices.resumed(kept, {}, 3000, made).config
  assert config['run']['steps_per_agent'] == 4 * updates + 3000
  # Another pace: the updates that were made are so many steps from here on.
  chosen = {'samples_per_insert': '8.0'}  # of 16
  config = choices.resumed(kept, chosen, 3000, made).config
  assert config['run']['steps_per_agent'] == 8 * updates + 3000


def test_a_class_is_an_agent_by_what_its_config_is_annotated_with():
  assert registry.agent('murmuration.agents.dqn:DQN').config is dqn.Config
  config = _config(
    'murmuration.agents.dqn:DQN', 'CartPole-v1', learning_rate='0.5'
  )
  assert config['agent_name'] == 'murmuration.agents.dqn:DQN'
  assert config['topology'] == 'single_process'
  assert config['agent']['learning_rate'] == 0.5
  with pytest.raises(ValueError, match='which environment'):
    _config('murmuration.agents.dqn:DQN')
  with pytest.raises(ValueError, match='def __init__'):
    registry.of_class(type('Silent', (base.Agent,), {}))


INHERITS = """
from __future__ import annotations
import dataclasses
from murmuration.agents import dqn
@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
  temperature: float = 0.03
class Says(dqn.DQN):
  config: Config
class Too(Says): pass
class Silent(dqn.DQN): pass
class Both(dqn.DQN):
  config: dqn.Config
  def __init__(self, config: Config, spec): pass
class Any(dqn.DQN):
  config: object
  def __init__(self, config: Config, spec): pass
class Unsaid(dqn.DQN):
  def __init__(self, config, spec): pass
class Nested(dqn.DQN):
  Config = Config
  config: Nested.Config
"""


def test_an_agent_is_made_with_the_config_of_its_own_module(
  tmp_path, monkeypatch
):
  (tmp_path / 'inherits.py').write_text(INHERITS)
  monkeypatch.syspath_prepend(tmp_path)
  for name in ('Says', 'Too', 'Both', 'Any', 'Nested'):
    config = registry.agent(f'inherits:{name}').config
    assert (config.__module__, config.__name__) == ('inherits', 'Config')
  # It would learn with the numbers of another, and say nothing.
  with pytest.raises(
    ValueError,
    match='or `config: murmuration.agents.dqn.Config`',
  ):
    registry.agent('inherits:Silent')
  with pytest.raises(ValueError, match='Unsaid does not say of which class'):
    registry.agent('inherits:Unsaid')


@pytest.mark.parametrize('name', registry.agents())
def test_each_agent_says_with_which_config_it_is_made(name):
  entry = registry.agent(name)
  assert entry.agent.config_class() is entry.config


def test_an_annotation_that_only_a_type_checker_has_is_a_sentence(tmp_path):
  source = """
from __future__ import annotations
import typing
from murmuration.agents import base
if typing.TYPE_CHECKING:
  from elsewhere import Config

class Own(base.Agent):
  def __init__(self, config: Config, spec): pass
"""
  found = {'__name__': 'own'}
  exec(source, found)
  with pytest.raises(ValueError, match="'Config' is not .*TYPE_CHECKING"):
    registry.of_class(found['Own'])


def test_settings_are_found_by_their_names():
  config = _config(
    'impala',
    topology='swarm',
    num_explorers='3',
    run={'eval_episodes': '2'},
    **{'agent.gamma': '0.9'},
  )
  assert config['swarm']['num_explorers'] == 3
  assert config['run']['eval_episodes'] == 2
  assert config['agent']['gamma'] == 0.9
  with pytest.raises(ValueError, match='"agent.learning_rate"'):
    _config('dqn', learning_rat='1')


@pytest.mark.parametrize(
  'words, said',
  [
    (('ppo', {'num_explorers': 3}), 'swarm.num_explorers'),
    (('dqn', {'num_actors': 3}), 'actors.num_actors'),
    # Where another section has the name, and the agent's own one is meant.
    (('d4pg', {'learning_rate': 1}), 'agent.policy_learning_rate'),
    (('dqn', {'run': 3}), 'run.NAME'),
    (('dqn', {'xyzzy': 3}), 'xyzzy'),
    (('ddpg', {'step': 9}), 'steps='),
    (('ddpg', {'total_timesteps': 9}), 'steps='),
    (('ddpg', {'env': 'A-v0'}), 'environment='),
    (('ddpg', {'n_steps': 9}), 'agent.n_step'),
    (('dqn', {'batch_size': 0}), 'agent.batch_size'),
    (('dqn', {'batch_size': 0.5}), 'agent.batch_size'),
    (('dqn', {'batch_size': 'many'}), 'agent.batch_size'),
    (('dqn', {'hidden_sizes': 64}), 'agent.hidden_sizes'),
    (('dqn', {'network': 'nature'}), 'network'),
  ],
)
def test_a_setting_that_cannot_be_is_named(words, said):
  agent, settings = words
  with pytest.raises(ValueError) as refused:
    _config(agent, 'Pendulum-v1' if agent == 'd4pg' else None, **settings)
  assert said in str(refused.value)


def test_a_setting_of_two_sections_is_found_by_what_the_refusal_advises():
  with pytest.raises(ValueError, match='several sections') as refused:
    _config('es_mlp', learning_rate='0.1')
  (name,) = re.findall(r"\*\*\{('.*'): ", str(refused.value))
  more = {ast.literal_eval(name): '0.1'}
  given = inspect.signature(runs.train).bind('es_mlp', **more).arguments
  config = _config(given['agent'], **given['config'])
  assert config['evolution']['learning_rate'] == 0.1


def test_settings_are_values_or_their_text():
  chosen = {'hidden_sizes': np.array([8, 8]), 'batch_size': np.int64(32)}
  config = _config('dqn', **arguments.plain(chosen), learning_rate='1e-3')
  agent = config['agent']
  assert agent['hidden_sizes'] == (8, 8) and agent['learning_rate'] == 1e-3
  assert agent['batch_size'] == 32 and type(agent['batch_size']) is int
  assert _config('dqn', target_return=None)['run']['target_return'] is None


def test_one_budget_said_twice_is_refused():
  with pytest.raises(
    ValueError, match='steps and steps_per_agent say the same'
  ):
    choices.cell('dqn', None, None, {'steps_per_agent': '9'}, 3000, 0)
