"""Which preset an environment has, and what a run can go on with."""

import dataclasses
import types

import pytest

from agents import data_sets
from launch import cell as cell_lib
from launch import command_line
from launch import registry
from launch.topologies import evolution
from run_records import run_directory
from run_records import settings


def test_threads_of_a_game_make_no_other_environment(tmp_path):
  overrides = {'environment': 'ALE/Pong-v5?threads=2'}
  found = cell_lib.resolve('impala', overrides=overrides)
  pong = cell_lib.resolve('impala', 'pong').config
  assert found.config == {**pong, **overrides} and not found.borrowed
  assert cell_lib.resume(pong, overrides).config == found.config
  run = run_directory.create(tmp_path / 'run', found.config, {})
  command_line._cell(
    command_line._parser('').parse(['impala:pong', f'--resume={run.path}']), {}
  )
  data_sets.check_task(overrides['environment'], pong, tmp_path)
  for name in ('ALE/Pong-v5?noop_max=0', 'ALE/Breakout-v5'):
    with pytest.raises(ValueError, match='cannot be gone on from with env'):
      cell_lib.resume(pong, {'environment': name})


def test_an_agent_without_presets_has_its_defaults_or_is_refused(monkeypatch):
  dqn = registry.agent('dqn')
  bare = dataclasses.replace(dqn, presets={})
  monkeypatch.setattr(registry, 'agent', lambda name: bare)
  with pytest.raises(ValueError, match='Set --config.environment=ID'):
    cell_lib.resolve('dqn')
  overrides = {'environment': 'Acrobot-v1'}
  cell = cell_lib.resolve('dqn', overrides=overrides)
  assert cell.sections['agent'] == dqn.config()


def test_what_other_names_of_settings_stand_for_exists():
  agents = [registry.agent(name) for name in registry.agents()]
  topologies = [registry.topology(name) for name in registry.TOPOLOGIES]
  known = set()
  for agent in agents:
    for topology in topologies:
      for config in cell_lib.classes(agent, topology).values():
        known.update(settings.names(config))
  meant = {name for names in settings._ELSEWHERE.values() for name in names}
  assert meant <= known


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
    registry.topology('agents.dqn:DQN')
