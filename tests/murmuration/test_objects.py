"""Under which names helper processes find what a caller gives."""

import dataclasses
import json
import pickle
import subprocess
import sys
import threading

import gymnasium
from gymnasium.envs.classic_control import cartpole
import pytest

import murmuration
from murmuration import given
from murmuration import helper
from murmuration import objects
from murmuration import playing
from murmuration import service
from murmuration.agents import base
from murmuration.launch import cell
from murmuration.launch import registry
from murmuration.run_records import run_directory


def test_importing_it_imports_nothing_heavy():
  code = (
    'import sys, murmuration\n'
    'heavy = {"tensorflow", "launchpad", "gymnasium", "numpy", "launch"}\n'
    'assert not heavy & set(sys.modules), heavy & set(sys.modules)\n'
  )
  subprocess.run(
    [sys.executable, '-c', code], cwd=objects.ROOT, check=True, timeout=60
  )


def test_names_stay_and_importable_things_are_named(monkeypatch):
  monkeypatch.setattr(objects, '_registered', dict)  # that of other tests
  found = objects.Objects()
  assert found.name('ppo:cartpole', 'agent') == 'ppo:cartpole'
  name = 'gymnasium.envs.classic_control.cartpole:CartPoleEnv'
  assert found.name(cartpole.CartPoleEnv, 'environment') == name
  assert (
    found.name(registry.agent('ppo'), 'agent')
    == 'murmuration.configs.ppo:AGENT'
  )
  assert found.name(registry.topology('gossip'), 'topology') == (
    'murmuration.launch.topologies:gossip'
  )
  assert found.pickled() is None


def test_what_no_other_process_can_import_goes_by_value():
  found = objects.Objects()
  own = type('Own', (cartpole.CartPoleEnv,), {'__module__': '__main__'})
  assert found.name(own, 'environment') == 'murmuration.given:Own'
  function = found.name(lambda: own(), 'environment')
  assert function == 'murmuration.given:environment'
  sent = pickle.loads(found.pickled())['objects']
  assert set(sent) == {'Own', 'environment'}
  assert isinstance(sent['environment'][0](), gymnasium.Env)


def test_ids_that_this_process_registered_go_along():
  gymnasium.register('Registered-v0', cartpole.CartPoleEnv)
  try:
    found = objects.Objects()
    found.name('Registered-v0', 'environment')
    found.name('CartPole-v1', 'environment')  # every process has it
    assert set(pickle.loads(found.pickled())['ids']) == {'Registered-v0'}
  finally:
    del gymnasium.registry['Registered-v0']


@pytest.fixture
def register(monkeypatch):
  """Registers an id until the test ends, also over one that is there."""

  def add(name, entry_point, **options):
    monkeypatch.setitem(gymnasium.registry, name, None)  # which undoes it
    del gymnasium.registry[name]
    gymnasium.register(name, entry_point, **options)

  return add


POLES = 'gymnasium.envs.classic_control.cartpole:CartPoleEnv'


def test_ids_of_gymnasiums_own_classes_go_along_if_they_are_not_its_own(
  register,
):
  register('Short-v0', POLES, max_episode_steps=7)
  register('CartPole-v1', POLES, max_episode_steps=7)
  for name in ('Short-v0', 'CartPole-v1'):
    found = objects.Objects()
    found.name(name, 'environment')
    (sent,) = pickle.loads(found.pickled())['ids'].values()
    assert (sent.id, sent.max_episode_steps) == (name, 7)
  found = objects.Objects()
  found.name('Pendulum-v1', 'environment')
  assert found.pickled() is None


def test_what_makes_environments_has_all_ids_that_can_be_sent(register):
  register('Short-v0', POLES, max_episode_steps=7)
  register('Held-v0', POLES, kwargs={'lock': threading.Lock()})
  for thing in (lambda: gymnasium.make('Short-v0'), cartpole.CartPoleEnv):
    found = objects.Objects()
    found.name(thing, 'environment')
    sent = pickle.loads(found.pickled())['others']
    assert 'Short-v0' in sent
    assert not {'Held-v0', 'CartPole-v1', 'Ant-v2'} & set(sent)


def test_an_id_takes_the_place_of_gymnasiums_own_in_a_helper(monkeypatch):
  own = gymnasium.registry['CartPole-v1']
  monkeypatch.setitem(gymnasium.registry, 'CartPole-v1', own)
  sent = dataclasses.replace(own, max_episode_steps=7)
  service.take({'objects': {}, 'ids': {'CartPole-v1': sent}})
  assert gymnasium.make('CartPole-v1').spec.max_episode_steps == 7


def test_an_id_that_a_helper_cannot_load_is_left_out():
  others = {'Lost-v0': b'of a module that is not here', 'Good-v0': b'I7\n.'}
  given = {'objects': {}, 'ids': {}, 'others': others}
  assert helper.given_by(pickle.dumps(given))['ids'] == {'Good-v0': 7}


def test_two_objects_of_one_name_are_two():
  found = objects.Objects()
  agent, environment, topology = (
    type('Own', (), {'__module__': '__main__', 'kind': kind})
    for kind in ('agent', 'environment', 'topology')
  )
  names = [
    found.name(agent, 'agent'),
    found.name(environment, 'environment'),
    found.name(topology, 'topology'),
  ]
  assert names == [
    f'murmuration.given:Own{more}' for more in ('', '_environment', '_topology')
  ]
  sent = pickle.loads(found.pickled())['objects']
  for name, kind in zip(names, ('agent', 'environment', 'topology')):
    assert sent[name.partition(':')[2]][0].kind == kind


def _loaded(directory, config, **given):
  """What goes to the helper of a run with this config."""
  directory.mkdir(exist_ok=True)
  (directory / 'config.json').write_text(json.dumps(config))
  run = murmuration.load(directory, **given)
  pickled = run._given.pickled()
  return pickled and pickle.loads(pickled)


def test_a_run_finds_its_objects_by_the_names_that_it_has(tmp_path):
  own = type('Now', (cartpole.CartPoleEnv,), {'__module__': '__main__'})
  agent = type('Now', (base.Agent,), {'__module__': '__main__'})
  for names in (
    ('murmuration.given:Now', 'murmuration.given:Now_environment'),
    ('murmuration.given:Before', 'murmuration.given:environment'),
  ):
    config = {'agent_name': names[0], 'environment': names[1]}
    given = {'agent': agent, 'environment': own}
    sent = _loaded(tmp_path, config, **given)['objects']
    found = [sent[name.partition(':')[2]][0] for name in names]
    assert [thing.__mro__[1] for thing in found] == [
      base.Agent, cartpole.CartPoleEnv,
    ]  # fmt: skip
  # One that has moved into a module is the same object.
  config = {'agent_name': 'dqn', 'environment': 'murmuration.given:Before'}
  sent = _loaded(tmp_path, config, environment=cartpole.CartPoleEnv)
  assert sent['objects']['Before'][0] is cartpole.CartPoleEnv
  assert _loaded(tmp_path, {'agent_name': 3, 'environment': None}) is None
  (tmp_path / 'config.json').write_text('{')
  assert murmuration.load(tmp_path).path == tmp_path


def test_another_thing_than_the_run_s_is_refused(tmp_path):
  config = {'agent_name': 'dqn', 'environment': POLES, 'topology': 'gossip'}
  for more in ({}, {'environment': cartpole.CartPoleEnv}, {'agent': 'dqn'}):
    _loaded(tmp_path, config, **more)
  _loaded(tmp_path, config, agent='dqn:cartpole')  # a preset of it
  for more, name in (
    ({'environment': lambda: 3}, POLES),
    ({'environment': 'CartPole-v1'}, POLES),
    ({'agent': registry.agent('ppo')}, 'dqn'),
    ({'topology': 'swarm'}, 'gossip'),
  ):
    with pytest.raises(ValueError, match=f"was trained with '{name}'"):
      _loaded(tmp_path, config, **more)
  config['environment'] = 'murmuration.given:Own'
  with pytest.raises(ValueError, match='or give the object of that name'):
    _loaded(tmp_path, config, environment='CartPole-v1')


def test_a_loaded_run_stays_where_it_was_found(tmp_path, monkeypatch):
  _loaded(tmp_path / 'run', {})
  monkeypatch.chdir(tmp_path)
  assert murmuration.load('run').path == tmp_path / 'run'


def test_a_loaded_run_takes_along_what_this_process_registered(tmp_path):
  gymnasium.register('Registered-v1', cartpole.CartPoleEnv)
  try:
    config = {'agent_name': 'dqn', 'environment': 'Registered-v1'}
    assert set(_loaded(tmp_path, config)['ids']) == {'Registered-v1'}
    config['environment'] = 'CartPole-v1'
    assert _loaded(tmp_path, config) is None
  finally:
    del gymnasium.registry['Registered-v1']


def test_an_object_that_is_not_here_is_asked_for_as_what_it_was(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(given, '__kinds__', {})
  config = {'agent_name': 'dqn', 'environment': 'murmuration.given:Mine'}
  config = {**cell.resolve('dqn').config, **config}
  run_directory.create(tmp_path / 'run', config, {})
  with pytest.raises(ValueError) as refused:
    playing.load(run_directory.open(tmp_path / 'run'))
  said = str(refused.value)
  assert 'murmuration.load(path, environment=Mine). ' in said
  assert 'agent=' not in said


def test_an_object_that_is_not_here_says_where_it_is():
  with pytest.raises(ValueError, match='murmuration.load'):
    registry.agent('murmuration.given:Own')
  with pytest.raises(AttributeError):
    getattr(given, '__wrapped__')  # noqa: B009 - importlib asks so
