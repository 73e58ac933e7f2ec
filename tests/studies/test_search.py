"""What a sweep tries."""

import numpy as np
import pytest

from murmuration.studies import search


@pytest.mark.parametrize(
  ('text', 'values'),
  [
    ('1e-3,3e-4', ('1e-3', '3e-4')),
    ('(32,),(64, 64),[1,(2,3)]', ('(32,)', '(64, 64)', '[1,(2,3)]')),
    ('tanh', ('tanh',)),
    ('log', ('log',)),
  ],
)
def test_commas_in_brackets_do_not_separate_values(text, values):
  assert search.parse('a.b', text) == search.Space(values)


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ('', 'between commas'),
    ('1,,2', 'between commas'),
    ('1,1', 'each once'),
    ('log(1e-4)', 'two numbers'),
    ('uniform(a,b)', 'two numbers'),
    ('uniform(2,1)', '2 must be below 1'),
    ('uniform(0,inf)', 'must be below inf'),
    ('log(0,1)', 'no logarithm'),
    ('int(1,2.5)', 'whole numbers'),
  ],
)
def test_what_is_no_space_is_refused(text, said):
  with pytest.raises(ValueError, match=said) as error:
    search.parse('agent.x', text)
  assert 'agent.x' in str(error.value)


def test_a_grid_is_every_combination_once():
  spaces = {'a': search.parse('a', '1,2'), 'b': search.parse('b', 'x,y,z')}
  found = search.grid(spaces)
  assert found[:2] == [{'a': '1', 'b': 'x'}, {'a': '1', 'b': 'y'}]
  assert len({tuple(trial.items()) for trial in found}) == 6
  with pytest.raises(ValueError, match='a grid needs values'):
    search.grid({'a': search.parse('a', 'uniform(0,1)')})


def test_more_trials_begin_with_those_of_fewer():
  spaces = {
    'rate': search.parse('rate', 'log(1e-4,1e-2)'),
    'size': search.parse('size', 'int(1,3)'),
    'share': search.parse('share', 'uniform(0.5,1)'),
  }
  many = search.draw(spaces, 400, seed=1)
  assert search.draw(spaces, 20, seed=1) == many[:20]
  assert search.draw(spaces, 20, seed=2) != many[:20]
  rates = np.array([float(trial['rate']) for trial in many])
  assert 1e-4 <= rates.min() and rates.max() <= 1e-2
  # Half of them below the geometric mean, not below the mean.
  assert 0.4 < (rates < 1e-3).mean() < 0.6
  assert {trial['size'] for trial in many} == {'1', '2', '3'}
  assert all(0.5 <= float(trial['share']) <= 1 for trial in many)


def test_no_more_trials_are_drawn_than_there_are():
  spaces = {'a': search.parse('a', '1,2'), 'b': search.parse('b', 'x,y')}
  found = search.draw(spaces, 10, seed=0)
  assert sorted(map(str, found)) == sorted(map(str, search.grid(spaces)))


def test_a_trial_with_a_crashed_seed_has_no_mean():
  assert search.mean([1.0, 2.0]) == 1.5
  assert search.mean([1.0, None]) is None
