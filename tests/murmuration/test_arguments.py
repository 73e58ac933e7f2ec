"""What a caller gives, and the sentences that refuse it."""

import functools
from unittest import mock

import numpy as np
import pytest

import murmuration
from murmuration import arguments
from murmuration import process


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


@pytest.mark.parametrize(
  'steps', [0, 1.5, -3, 'a', '5', [5, 6], 1e999, True, np.True_]
)
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
  'command, here',
  [
    ('Set --config.agent.n_step.', 'Set n_step.'),
    # A name that other sections have too, and one of an argument of `train`.
    ('Set --config.evolution.sigma.', 'Set evolution.sigma.'),
    ('Set --config.gossip.topology.', 'Set gossip.topology.'),
    ('--config.agent.v_min=-3.5 does', 'v_min=-3.5 does'),
    ('--config.run.target_return=None lets', 'target_return=None lets'),
    ('Set --config.environment=ID.', "Set environment='ID'."),
    ('--config.offline.environment=A-v1.', "offline={'environment': 'A-v1'}."),
    ('it: --config.offline.data=out/.', "it: data='out/'."),
    ('set --topology=swarm.', "set topology='swarm'."),
    ('Give another --run_dir, or', 'Give another run_dir, or'),
    ('With --lp_launch_type=local_mt it', "With engine='local_mt' it"),
    ('--cluster=a:cpus=4,gpus=1, or', "cluster='a:cpus=4,gpus=1', or"),
    ('--sink=wandb needs', "sinks='wandb' needs"),
    ('--resume=runs/a then', "mm.load('runs/a').resume() then"),
    ('Leave out --resume to', 'Leave out resume to'),
    ('with --isolate=off.', 'with --isolate=off.'),  # it has none
  ],
)
def test_flags_of_the_command_are_named_as_python_has_them(command, here):
  assert arguments.in_python(command) == here


@pytest.mark.parametrize(
  'given, text',
  [
    (np.array([8, 8]), '(8, 8)'),
    (np.full(2000, 7), str((7,) * 2000)),
    ([np.int64(8), 4], '(8, 4)'),
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
