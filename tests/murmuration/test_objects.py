"""Under which names helper processes find what a caller gives."""

import json
import pathlib
import subprocess
import sys
import threading

import gymnasium
from gymnasium.envs.classic_control import cartpole
import pytest

import murmuration
from murmuration import given
from murmuration import objects
from murmuration import playing
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
    [sys.executable, '-c', code],
    cwd=pathlib.Path(__file__).parents[2],
    check=True,
    timeout=60,
  )


@pytest.fixture
def elsewhere(monkeypatch):
  """elsewhere(found): takes what is sent as another process does.

  Returns:
    Objects by name, and the specs of ids.
  """

  def take(found):
    sent = found.pickled()
    for name in [name for name in vars(given) if name[0] != '_']:
      monkeypatch.delitem(vars(given), name)
    before = dict(gymnasium.registry)
    gymnasium.registry.clear()
    objects.take(sent)
    ids = dict(gymnasium.registry)
    gymnasium.registry.update(before)
    names = [name for name in vars(given) if name[0] != '_']
    return {name: vars(given).pop(name) for name in names}, ids

  return take


def test_names_stay_and_importable_things_are_named(elsewhere):
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
  assert found.here == {} and elsewhere(found)[0] == {}


def test_what_no_other_process_can_import_goes_by_value(elsewhere):
  found = objects.Objects()
  own = type('Own', (cartpole.CartPoleEnv,), {'__module__': '__main__'})
  assert found.name(own, 'environment') == 'murmuration.given:Own'
  function = found.name(lambda: own(), 'environment')
  assert function == 'murmuration.given:environment'
  sent, _ = elsewhere(found)
  assert set(sent) == {'Own', 'environment'}
  assert isinstance(sent['environment'](), gymnasium.Env)


@pytest.fixture
def register(monkeypatch):
  """Registers an id until the test ends, also over one that is there."""

  def add(name, entry_point, **options):
    monkeypatch.setitem(gymnasium.registry, name, None)  # which undoes it
    del gymnasium.registry[name]
    gymnasium.register(name, entry_point, **options)

  return add


POLES = 'gymnasium.envs.classic_control.cartpole:CartPoleEnv'


def test_ids_go_along_as_this_process_has_registered_them(register, elsewhere):
  register('Short-v0', POLES, max_episode_steps=7)
  register('Own-v0', type('Own', (cartpole.CartPoleEnv,), {}))
  register('CartPole-v1', POLES, max_episode_steps=7)
  for name, limit in (('Short-v0', 7), ('CartPole-v1', 7), ('Own-v0', None)):
    found = objects.Objects()
    found.name(name, 'environment')
    ((sent, spec),) = elsewhere(found)[1].items()
    assert (sent, spec.max_episode_steps) == (name, limit)


def test_what_makes_environments_has_all_ids_that_can_be_sent(
  register, elsewhere
):
  register('Short-v0', POLES, max_episode_steps=7)
  register('Held-v0', POLES, kwargs={'lock': threading.Lock()})
  for thing in (lambda: gymnasium.make('Short-v0'), cartpole.CartPoleEnv):
    found = objects.Objects()
    found.name(thing, 'environment')
    sent = elsewhere(found)[1]
    assert 'Short-v0' in sent and 'Held-v0' not in sent


def test_an_id_that_cannot_be_loaded_elsewhere_is_left_out(monkeypatch):
  monkeypatch.setitem(gymnasium.registry, 'Good-v0', None)
  ids = {'Lost-v0': b'of a module that is not here', 'Good-v0': b'I7\n.'}
  objects.take({'objects': None, 'ids': ids})
  assert gymnasium.registry['Good-v0'] == 7
  assert 'Lost-v0' not in gymnasium.registry


def test_objects_of_runs_that_are_named_alike_stay_apart():
  """Each run plays in its own environment."""
  names = []
  for size in (3, 5):
    found = objects.Objects()
    config = {'environment': found.name(lambda size=size: size, 'environment')}
    assert config == {'environment': 'murmuration.given:environment'}
    here = found.config_here({'agent_name': 'dqn', **config})
    assert here['agent_name'] == 'dqn'
    names.append(here['environment'].partition(':')[2])
  assert [getattr(given, name)() for name in names] == [3, 5]


def test_two_objects_of_one_name_are_two(elsewhere):
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
  sent, _ = elsewhere(found)
  for name, kind in zip(names, ('agent', 'environment', 'topology')):
    assert sent[name.partition(':')[2]].kind == kind


def _loaded(directory, config, **given):
  """The objects of a loaded run with this config."""
  directory.mkdir(exist_ok=True)
  (directory / 'config.json').write_text(json.dumps(config))
  return murmuration.load(directory, **given)._given


def test_a_run_finds_its_objects_by_the_names_that_it_has(tmp_path, elsewhere):
  own = type('Now', (cartpole.CartPoleEnv,), {'__module__': '__main__'})
  for names in (
    ('murmuration.given:Now', 'murmuration.given:Now_environment'),
    ('murmuration.given:Before', 'murmuration.given:environment'),
  ):
    config = {'agent_name': 'dqn', 'environment': names[1]}
    sent, _ = elsewhere(_loaded(tmp_path, config, environment=own))
    assert sent[names[1].partition(':')[2]].__mro__[1] is cartpole.CartPoleEnv
  # One that has moved into a module is the same object.
  config = {'agent_name': 'dqn', 'environment': 'murmuration.given:Before'}
  sent, _ = elsewhere(
    _loaded(tmp_path, config, environment=cartpole.CartPoleEnv)
  )
  assert sent['Before'] is cartpole.CartPoleEnv
  assert not elsewhere(
    _loaded(tmp_path, {'agent_name': 3, 'environment': None})
  )[0]
  (tmp_path / 'config.json').write_text('{')
  with pytest.raises(ValueError, match='config.json'):
    murmuration.load(tmp_path)


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


def test_a_loaded_run_takes_along_what_this_process_registered(
  tmp_path, register, elsewhere
):
  register('Registered-v1', cartpole.CartPoleEnv)
  config = {'agent_name': 'dqn', 'environment': 'Registered-v1'}
  assert set(elsewhere(_loaded(tmp_path, config))[1]) == {'Registered-v1'}


def test_a_run_without_its_object_is_not_played(tmp_path):
  config = {'agent_name': 'dqn', 'environment': 'murmuration.given:Mine'}
  config = {**cell.resolve('dqn').config, **config}
  run_directory.create(tmp_path / 'run', config, {})
  with pytest.raises(ValueError, match='environment=Mine'):
    playing.load(run_directory.open(tmp_path / 'run'))


def test_an_object_that_is_not_here_says_where_it_is():
  with pytest.raises(ValueError, match='murmuration.load'):
    registry.agent('murmuration.given:Own')
  with pytest.raises(AttributeError):
    getattr(given, '__wrapped__')  # noqa: B009 - importlib asks so
