"""What a caller gives, and the sentences that refuse it."""

import numpy as np
import pytest

import murmuration
from murmuration import arguments
from murmuration import process


def test_load_refuses_what_is_no_run(tmp_path):
  with pytest.raises(ValueError, match='config.json'):
    murmuration.load(tmp_path)


@pytest.fixture
def nothing_starts(monkeypatch):
  def start(*unused, **words):
    raise AssertionError('a process was started')

  monkeypatch.setattr(process, 'Process', start)


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
  ],
)
def test_a_callback_that_cannot_be_called_is_refused_before_a_start(
  nothing_starts, name, callback, said
):
  with pytest.raises(ValueError, match=f'{name}{said}'):
    murmuration.train('dqn', **{name: callback})


@pytest.mark.parametrize(
  'steps', [0, 1.5, -3, 'a', '5', [5, 6], 1e999, True, np.True_]
)
def test_steps_are_whole(nothing_starts, steps):
  with pytest.raises(
    ValueError, match='steps=.* has to be a whole number, at least 1'
  ):
    murmuration.train('ppo', 'CartPole-v1', steps=steps)


@pytest.mark.parametrize(
  'call, words, said',
  [
    (
      'evaluate',
      {'episodes': 2.5},
      'episodes=2.5 has to be a whole number, at least 1',
    ),
    ('evaluate', {'episodes': 'x'}, "episodes='x' has to be a whole number"),
    ('evaluate', {'episodes': None}, 'episodes=None has to be a whole number'),
    (
      'evaluate',
      {'seed': 'x'},
      "seed='x' has to be a whole number, at least 0",
    ),
    (
      'resume',
      {'steps': 'a'},
      "steps='a' has to be a whole number, at least 1",
    ),
    (
      'film',
      {'path': 'a.gif', 'steps': 0.5},
      'steps=0.5 has to be a whole number',
    ),
    ('film', {'path': 'a.gif', 'seed': -1}, 'seed=-1 has to be a whole number'),
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
  with pytest.raises(
    ValueError, match='seed=2.5 has to be a whole number, at least 0'
  ):
    murmuration.train('dqn', seed=2.5)


@pytest.mark.parametrize(
  'given, plain',
  [
    (np.array([8, 8]), [8, 8]),
    ([np.int64(8), 4], [8, 4]),
    (('a', 0.5), ['a', 0.5]),
    (np.int64(8), 8),
    (np.array(8), 8),
    (np.True_, True),
  ],
)
def test_numbers_of_numpy_are_settings_as_those_of_python(given, plain):
  found = arguments.plain({'one': given, 'agent': {'two': given}})
  assert found == {'one': plain, 'agent': {'two': plain}}
  assert type(found['one']) is type(plain)


def test_a_line_of_python_does_the_same_again(monkeypatch):
  line = arguments.written(
    'train',
    ('murmuration.given:Mine', 'Acrobot-v1'),
    {'learning_rate': 1e-3, 'run': {'silent_s': 70.0}, 'gossip.tau': None},
    seed=3,
    sinks='',
  )
  called = []
  monkeypatch.setattr(
    murmuration, 'train', lambda *a, **k: called.append((a, k)), raising=False
  )
  eval(line, {'murmuration': murmuration, 'Mine': 'the class'})
  assert called == [
    (
      ('the class', 'Acrobot-v1'),
      {
        'seed': 3,
        'learning_rate': 1e-3,
        'run': {'silent_s': 70.0},
        'gossip.tau': None,
      },
    )
  ]
