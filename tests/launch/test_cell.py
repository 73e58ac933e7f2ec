"""Which preset an environment has, and what a run can go on with."""

import dataclasses
import sys
import types

import pytest

from murmuration.agents import data_sets
from murmuration.agents import dqn
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.launch.topologies import evolution


def test_threads_of_a_game_make_no_other_environment(tmp_path):
  overrides = {'environment': 'ALE/Pong-v5?threads=2'}
  found = cell_lib.resolve('impala', overrides=overrides)
  pong = cell_lib.resolve('impala', 'pong').config
  assert found.config == {**pong, **overrides} and not found.borrowed
  assert cell_lib.resume(pong, overrides).config == found.config
  data_sets.check_task(overrides['environment'], pong, tmp_path)
  for name in ('ALE/Pong-v5?noop_max=0', 'ALE/Breakout-v5'):
    with pytest.raises(ValueError, match='environment'):
      cell_lib.resume(pong, {'environment': name})


def test_an_agent_without_presets_has_its_defaults_or_is_refused(monkeypatch):
  found = registry.agent('dqn')
  bare = dataclasses.replace(found, presets={})
  monkeypatch.setattr(registry, 'agent', lambda name: bare)
  with pytest.raises(ValueError, match='Set --config.environment=ID'):
    cell_lib.resolve('dqn')
  overrides = {'environment': 'Acrobot-v1'}
  cell = cell_lib.resolve('dqn', overrides=overrides)
  assert cell.sections['agent'] == found.config()


def test_what_no_run_can_act_with_is_refused_before_it_starts(monkeypatch):
  def refused(environment):
    raise ValueError(f'no vector of {environment}')

  with monkeypatch.context() as m:
    m.setattr(cell_lib.vector, 'check', refused)
    with pytest.raises(ValueError, match='no vector of CartPole-v1'):
      cell_lib.resolve('dqn')
  # An agent with one of two methods that stand for each other.
  kind = type('Mine', (dqn.DQN,), {'act': lambda self, *unused: None})
  entry = dataclasses.replace(registry.agent('dqn'), agent=kind)
  monkeypatch.setattr(registry, 'agent', lambda name: entry)
  with pytest.raises(ValueError, match='actor is that of ValueAgent'):
    cell_lib.resolve('dqn')


def test_a_preset_may_have_numbers_of_the_agent_s_own_topology(monkeypatch):
  topology = types.SimpleNamespace(
    SECTION='mine', Config=evolution.Config, members=len, build=len
  )
  found = registry.topology
  monkeypatch.setattr(
    registry,
    'topology',
    lambda name: topology if name == 'own:Mine' else found(name),
  )
  entry = dataclasses.replace(
    registry.agent('dqn'),
    topology='own:Mine',
    presets={'one': {'environment': 'CartPole-v1', 'mine': {}}},
  )
  monkeypatch.setattr(registry, 'agent', lambda name: entry)
  assert cell_lib.resolve('dqn', topology='single_process').topology
  wrong = {'environment': 'CartPole-v1', 'thine': {}}
  entry = dataclasses.replace(entry, presets={'one': wrong})
  with pytest.raises(ValueError, match="section of a preset 'thine'"):
    cell_lib.resolve('dqn', topology='single_process')


OWN = """
from __future__ import annotations
import dataclasses
from murmuration.agents import dqn, impala, value_agent
from murmuration.launch import registry

class Misspelt(value_agent.ValueAgent):
  name = 'misspelt'
  config: value_agent.Config
  def td_eror(self, *given): pass

class Nameless(value_agent.ValueAgent):
  config: value_agent.Config
  def td_error(self, *given): pass

@dataclasses.dataclass(frozen=True)
class Unread(dqn.Config):
  size: Unknown = 3

class Reads(dqn.DQN):
  config: Unread

class Raises(dqn.DQN):
  config: dqn.Config
  def __init__(self, config, spec):
    self.spec = spec
    self.oops

def given(config, agent=dqn.DQN):
  return registry.Agent('given', '', agent, config, 'single_process', {})

@dataclasses.dataclass(frozen=True)
class Larger(dqn.Config):
  more: int = 3

class Silent(dqn.DQN):
  def __init__(self, config, spec):
    super().__init__(config, spec)

Other, Fits = given(impala.Config), given(Larger)
NoClass, Unsaid = given(dict), given(dqn.Config, Silent)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
  """own(name): the cell of an agent of a user's module, on CartPole-v1."""
  (tmp_path / 'own_agents.py').write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  task = {'environment': 'CartPole-v1'}
  yield lambda name: cell_lib.resolve(f'own_agents:{name}', overrides=task)
  del sys.modules['own_agents']


@pytest.mark.parametrize(
  'name, said',
  [
    (
      'Misspelt',
      'Misspelt has no method td_error, which ValueAgent asks of it. Is its '
      'td_eror meant?',
    ),
    ('Nameless', 'Nameless has no name, which agents/base.py asks of an agent'),
    ('Reads', "of Unread cannot be read: NameError: name 'Unknown' is not def"),
    (
      'Other',
      'DQN is to be made with config=murmuration.agents.impala.Config, but its '
      'own is murmuration.agents.dqn.Config.',
    ),
    (
      'NoClass',
      'config=builtins.dict, but its own is murmuration.agents.dqn.Config.',
    ),
  ],
)
def test_an_agent_that_cannot_be_made_is_refused_in_a_sentence(own, name, said):
  with pytest.raises(ValueError, match=said):
    own(name)


@pytest.mark.parametrize('name, more', [('Fits', True), ('Unsaid', False)])
def test_a_config_may_be_made_of_the_agent_s_or_be_the_only_one_said(
  own, name, more
):
  assert hasattr(own(name).sections['agent'], 'more') == more


def test_what_else_the_making_of_an_agent_raises_ends_with_its_name(own):
  said = r"Raises\(config, spec\) could not be made: AttributeError: .*'oops'"
  with pytest.raises(RuntimeError, match=f'{said} .*own_agents.py:') as e:
    own('Raises')
  assert isinstance(e.value.__cause__, AttributeError)


class Topology:
  SECTION, Config = 'mine', evolution.Config

  def members(self, config):
    return 1

  def build(self, experiment, config):
    raise NotImplementedError


def test_a_topology_may_be_a_class():
  found = registry.topology(f'{__name__}:Topology')
  assert found.members(None) == 1
  with pytest.raises(ValueError, match='without SECTION'):
    registry.topology('murmuration.agents.dqn:DQN')


class Nothing(Topology):
  def build(self, experiment, config):
    pass


def test_a_topology_that_builds_no_program_is_refused():
  cell = cell_lib.resolve('dqn', topology=f'{__name__}:Nothing')
  with pytest.raises(ValueError, match='Nothing returned a NoneType, but has'):
    cell.build()


@pytest.mark.parametrize(
  'section', ['run', 'agent', 'seed', 'gossip', 'server']
)
def test_a_section_that_a_run_has_already_is_taken(monkeypatch, section):
  monkeypatch.setattr(Topology, 'SECTION', section)
  with pytest.raises(ValueError, match=f"the section '{section}' is taken"):
    cell_lib.resolve('dqn', topology=f'{__name__}:Topology')


def test_a_topology_with_the_settings_of_another_has_its_section(monkeypatch):
  monkeypatch.setattr(Topology, 'SECTION', 'evolution')
  assert registry.topology(f'{__name__}:Topology').SECTION == 'evolution'


@pytest.mark.parametrize(
  'name, wrong, said',
  [('SECTION', 'a.b', 'needs a word'), ('Config', dict, 'that is a type, not')],
)
def test_what_is_no_section_is_refused(monkeypatch, name, wrong, said):
  monkeypatch.setattr(Topology, name, wrong)
  with pytest.raises(ValueError, match=said):
    registry.topology(f'{__name__}:Topology')


@pytest.mark.parametrize(
  ('agent', 'topology', 'place'),
  [
    ('dqn', 'single_process', 'ring'),
    ('dqn', 'gossip', 'ring'),
    ('dqn', 'parameter_server', 'ring'),
    ('dqn', 'swarm', 'colocated'),
    ('apex_dqn', 'actor_learner', 'colocated'),
  ],
)
def test_replay_is_where_its_topology_keeps_it(agent, topology, place):
  found = cell_lib.resolve(agent, topology=topology)
  assert found.experiment.run.replay == place


def test_actors_cannot_write_to_the_memory_of_a_learner():
  overrides = {'run.replay': 'ring'}
  with pytest.raises(ValueError, match="run.replay='ring'"):
    cell_lib.resolve('apex_dqn', overrides=overrides).build()
