"""Under which names helper processes find what a caller gives."""

import functools
import io
import json
import pickle
import subprocess
import sys
import types
from unittest import mock

import gymnasium
from gymnasium.envs.classic_control import cartpole
import numpy as np
import pytest

from agents import base
from agents import dqn
from launch import cell as cell_lib
from launch import registry
import murmuration
from murmuration import arguments
from murmuration import choices
from murmuration import given
from murmuration import objects
from murmuration import process
from murmuration import progress


def test_importing_it_imports_nothing_heavy():
  code = (
    'import sys, murmuration\n'
    'heavy = {"tensorflow", "launchpad", "gymnasium", "numpy", "launch"}\n'
    'assert not heavy & set(sys.modules), heavy & set(sys.modules)\n'
  )
  subprocess.run(
    [sys.executable, '-c', code], cwd=objects.ROOT, check=True, timeout=60
  )


def test_names_stay_and_importable_things_are_named():
  found = objects.Objects()
  assert found.name('ppo:cartpole', 'agent') == 'ppo:cartpole'
  name = 'gymnasium.envs.classic_control.cartpole:CartPoleEnv'
  assert found.name(cartpole.CartPoleEnv, 'environment') == name
  assert found.name(registry.agent('ppo'), 'agent') == 'configs.ppo:AGENT'
  assert found.name(registry.topology('gossip'), 'topology') == (
    'launch.topologies:gossip'
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


def test_a_module_that_hides_one_of_the_project_s_goes_by_value(monkeypatch):
  module = types.ModuleType('studies')
  module.__file__ = '/somewhere/studies.py'
  exec('class Own:\n  kind = 7', module.__dict__)
  monkeypatch.setitem(sys.modules, 'studies', module)
  found = objects.Objects()
  assert found.name(module.Own, 'environment') == 'murmuration.given:Own'
  data = found.pickled()
  monkeypatch.delitem(sys.modules, 'studies')
  assert pickle.loads(data)['objects']['Own'][0].kind == 7


def test_ids_that_this_process_registered_go_along():
  gymnasium.register('Registered-v0', cartpole.CartPoleEnv)
  try:
    found = objects.Objects()
    found.name('Registered-v0', 'environment')
    found.name('CartPole-v1', 'environment')  # every process has it
    assert set(pickle.loads(found.pickled())['ids']) == {'Registered-v0'}
  finally:
    del gymnasium.registry['Registered-v0']


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


def test_a_loaded_run_takes_along_what_this_process_registered(tmp_path):
  gymnasium.register('Registered-v1', cartpole.CartPoleEnv)
  try:
    config = {'agent_name': 'dqn', 'environment': 'Registered-v1'}
    assert set(_loaded(tmp_path, config)['ids']) == {'Registered-v1'}
    config['environment'] = 'CartPole-v1'
    assert _loaded(tmp_path, config) is None
  finally:
    del gymnasium.registry['Registered-v1']


def test_an_object_that_is_not_here_says_where_it_is():
  with pytest.raises(ValueError, match='murmuration.load'):
    registry.agent('murmuration.given:Own')
  with pytest.raises(AttributeError):
    getattr(given, '__wrapped__')  # noqa: B009 - importlib asks so


def test_load_refuses_what_is_no_run(tmp_path):
  with pytest.raises(ValueError, match='holds no run'):
    murmuration.load(tmp_path)


@pytest.mark.parametrize(
  ('theirs', 'ours'), [('total_timesteps', 'steps'), ('env', 'environment')]
)
def test_arguments_by_another_library_s_names_are_told(theirs, ours):
  with pytest.raises(ValueError, match=f'here it is {ours}='):
    murmuration.train('ppo', **{theirs: 'CartPole-v1'})


def test_saving_again_says_how(tmp_path):
  path = tmp_path / 'run'
  path.mkdir()
  (path / 'config.json').write_text('{}')
  run = murmuration.load(path)
  run.save(tmp_path / 'kept')
  with pytest.raises(FileExistsError, match='overwrite=True'):
    run.save(tmp_path / 'kept')
  (path / 'newer').touch()
  run.save(tmp_path / 'kept', overwrite=True)
  assert (tmp_path / 'kept' / 'newer').exists()
  assert run.save(path, overwrite=True) == path and path.exists()
  (tmp_path / 'other').mkdir()
  with pytest.raises(FileExistsError, match='is no run'):
    run.save(tmp_path / 'other', overwrite=True)


@pytest.fixture
def nothing_starts(monkeypatch):
  def start(*unused, **words):
    raise AssertionError('a process was started')

  monkeypatch.setattr(process, 'Helper', start)


@pytest.mark.parametrize(
  'kind, thing, said',
  [
    ('agent', None, "agent=None is no agent: give a name such as 'ppo:p"),
    ('agent', True, 'agent=True is no agent'),
    ('agent', np.True_, 'is no agent'),
    ('agent', '', "agent='' is no agent"),
    ('agent', 'dqn:', "agent='dqn:' is no agent"),
    ('environment', '', "environment='' is no environment: give a gymn"),
    ('environment', 0, 'environment=0 is no environment'),
    ('environment', False, 'environment=False is no environment'),
    ('topology', 3, 'topology=3 is no topology: .*SECTION, Config'),
    ('topology', '', "topology='' is no topology"),
  ],
)
def test_what_is_none_of_its_kind_is_refused_before_a_start(
  nothing_starts, kind, thing, said
):
  with pytest.raises(ValueError, match=said):
    murmuration.train(**{'agent': 'dqn', kind: thing}, steps=600)


@pytest.mark.parametrize('name', ['on_tick', 'on_evaluation', 'on_end'])
@pytest.mark.parametrize(
  'callback, said',
  [
    (3, '=3 cannot be called. Give'),
    (lambda run: None, '=.* takes \\(run\\)'),
    (lambda run, news, more: None, '=.* takes .run, news, more.'),
  ],
)
def test_a_callback_that_cannot_be_called_is_refused_before_a_start(
  nothing_starts, name, callback, said
):
  with pytest.raises(ValueError, match=f'{name}{said}'):
    murmuration.train('dqn', **{name: callback})


def _adapted(callback):
  @functools.wraps(callback)
  def wrapped(run, news):
    return callback(run, news, 'more')

  return wrapped


@pytest.mark.parametrize(
  'callback',
  [
    print,
    mock.Mock(),
    functools.partial(lambda more, run, news: None, 1),
    lambda run, news, more=None: None,
    lambda *news: None,
    _adapted(lambda run, news, more: None),
  ],
)
def test_a_callback_that_can_be_called_is_not_refused(callback):
  arguments.check_callbacks({'on_end': callback, 'on_tick': None})


@pytest.mark.parametrize('steps', [0, 1.5, -3, 'a', '5', [5, 6], 1e999])
def test_steps_are_whole(nothing_starts, steps):
  with pytest.raises(ValueError, match='steps=.* is no whole number from 1'):
    murmuration.train('ppo', 'CartPole-v1', steps=steps)


@pytest.mark.parametrize(
  'call, words, said',
  [
    ('evaluate', {'episodes': 2.5}, 'episodes=2.5 is no whole number from 1'),
    ('evaluate', {'episodes': 'x'}, "episodes='x' is no whole number"),
    ('evaluate', {'episodes': None}, 'episodes=None is no whole number'),
    ('evaluate', {'seed': 'x'}, "seed='x' is no whole number from 0"),
    ('resume', {'steps': 'a'}, "steps='a' is no whole number from 1"),
    ('film', {'path': 'a.gif', 'steps': 0.5}, 'steps=0.5 is no whole number'),
    ('film', {'path': 'a.gif', 'seed': -1}, 'seed=-1 is no whole number'),
  ],
)
def test_numbers_of_a_run_are_whole(
  tmp_path, nothing_starts, call, words, said
):
  (tmp_path / 'config.json').write_text('{}')
  run = murmuration.load(tmp_path)
  with pytest.raises(ValueError, match=said):
    getattr(run, call)(**words)


def test_a_seed_is_whole(nothing_starts):
  with pytest.raises(ValueError, match='seed=2.5 is no whole number from 0'):
    murmuration.train('dqn', seed=2.5)


@pytest.mark.parametrize(
  'given, text',
  [
    (np.array([8, 8]), '[8, 8]'),
    (np.full(2000, 7), str([7] * 2000)),
    ([np.int64(8), 4], '[8, 4]'),
    ((np.int64(8),), '(8,)'),
    (('a', 0.5), "('a', 0.5)"),
    (np.int64(8), '8'),
    (np.array(8), '8'),
    (np.float32(0.1), '0.1'),
    (np.True_, 'True'),
  ],
)
def test_numbers_of_numpy_are_settings_as_those_of_python(given, text):
  found = arguments.as_text({'one': given, 'agent': {'two': given}})
  assert found == {'one': text, 'agent': {'two': text}}


def test_sizes_may_be_an_array():
  chosen = arguments.as_text({'hidden_sizes': np.array([8, 8])})
  assert _config('dqn', **chosen)['agent']['hidden_sizes'] == (8, 8)


# choices.py


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
  assert registry.agent('agents.dqn:DQN').config is dqn.Config
  config = _config('agents.dqn:DQN', 'CartPole-v1', learning_rate='0.5')
  assert config['agent_name'] == 'agents.dqn:DQN'
  assert config['topology'] == 'single_process'
  assert config['agent']['learning_rate'] == 0.5
  with pytest.raises(ValueError, match='which environment'):
    _config('agents.dqn:DQN')
  with pytest.raises(ValueError, match='def __init__'):
    registry.of_class(type('Silent', (base.Agent,), {}))


def test_an_annotation_that_only_a_type_checker_has_is_a_sentence(tmp_path):
  source = """
from __future__ import annotations
import typing
from agents import base
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


# progress.py


def test_the_bar_says_how_far_it_is(capsys):
  bar = progress.Bar(True)
  tick = {'steps': 500, 'budget': 1000, 'elapsed_s': 2.0}
  bar.show('evaluation', {'return_mean': 21.0})
  bar.show('tick', tick)
  bar.close()
  shown = capsys.readouterr().err
  assert ' 50%' in shown and '250/s' in shown and 'return 21.0' in shown
  progress.Bar(False).show('tick', tick)
  assert capsys.readouterr().err == ''


def test_a_note_stands_above_the_bar_also_where_that_is_not_shown(capsys):
  tick = {'steps': 500, 'budget': 1000, 'elapsed_s': 2.0}
  for shown in (True, False):
    bar = progress.Bar(shown)
    bar.show('tick', tick)
    bar.say('note: no step limit')
    bar.show('tick', tick)
    bar.close()
    lines = capsys.readouterr().err.replace('\r', '\n').split('\n')
    kept = [line.strip() for line in lines if line.strip()]
    assert 'note: no step limit' in kept and len(kept) == (3 if shown else 1)


class _Full(io.StringIO):
  def write(self, text):
    raise OSError(28, 'No space left on device')


@pytest.mark.parametrize('stream', [None, io.StringIO(), _Full()])
def test_a_bar_that_nobody_can_see_ends_no_run(monkeypatch, stream):
  if type(stream) is io.StringIO:
    stream.close()
  monkeypatch.setattr(sys, 'stderr', stream)
  for shown in (None, True):
    bar = progress.Bar(shown)
    bar.show('tick', {'steps': 5, 'budget': 10, 'elapsed_s': 2.0})
    bar.say('note: nobody')
    bar.close()
