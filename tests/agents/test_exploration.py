"""Epsilons against the vectors, and how often an action is random."""

import numpy as np
import pytest

from murmuration.agents import exploration


@pytest.mark.vectors('apex_epsilons')
def test_the_ladder_is_that_of_the_vectors(vector):
  got = exploration.ladder(
    vector.inputs['N'], vector.inputs['epsilon'], vector.inputs['alpha']
  )
  np.testing.assert_allclose(
    got, vector.expected['epsilons'], **vector.tolerance['float64']
  )


def test_the_ladder_is_the_formula_of_ape_x():
  slow = [0.4 ** (1 + 7 * i / (5 - 1)) for i in range(5)]
  np.testing.assert_allclose(exploration.ladder(5, 0.4, 7.0), slow)
  np.testing.assert_array_equal(exploration.ladder(1, 0.4, 7.0), [0.4])
  np.testing.assert_array_equal(exploration.ladder(3, 0.0, 7.0), [0, 0, 0])


@pytest.mark.parametrize(('actors', 'num_envs'), [(3, 4), (4, 1), (1, 5)])
def test_the_actors_together_are_the_ladder_and_each_spans_it(actors, num_envs):
  ladder = exploration.ladder(actors * num_envs, 0.4, 7.0)
  shares = [
    exploration.actor_epsilons(i, actors, num_envs, 0.4, 7.0)
    for i in range(actors)
  ]
  for i, share in enumerate(shares):
    for k in range(num_envs):
      assert share[k] == ladder[k * actors + i]
  np.testing.assert_array_equal(np.sort(np.concatenate(shares))[::-1], ladder)


@pytest.mark.parametrize('index', [-1, 3])
def test_an_actor_that_is_not_one_of_them_is_refused(index):
  with pytest.raises(ValueError, match=f'Actor {index} of 3 has no place'):
    exploration.actor_epsilons(index, 3, 2, 0.4, 7.0)


def test_the_line_ends_where_it_should():
  got = [exploration.linear(0.8, 0.2, 300, n) for n in (0, 100, 150, 300, 999)]
  np.testing.assert_allclose(got, [0.8, 0.6, 0.5, 0.2, 0.2])
  assert exploration.linear(0.8, 0.2, 0, 0) == pytest.approx(0.8)
  assert exploration.linear(0.8, 0.2, 0, 1) == pytest.approx(0.2)


def test_each_environment_explores_by_its_own_epsilon():
  # Within 3 standard errors of eps (1 - 1/A).
  rng = np.random.default_rng(0)
  epsilon, steps = exploration.ladder(4, 0.8, 3.0), 4000
  q = rng.normal(size=(steps, 4, 5))
  actions = exploration.epsilon_greedy(q, epsilon, rng)
  assert actions.dtype == np.int32
  share = epsilon * (1 - 1 / 5)
  error = np.sqrt(share * (1 - share) / steps)
  other = (actions != q.argmax(axis=-1)).mean(axis=0)
  assert (np.abs(other - share) < 3 * error).all(), (other, share)
  assert set(np.unique(actions)) == set(range(5))


def test_among_equals_the_lowest_action_is_taken():
  q = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
  got = exploration.epsilon_greedy(q, 0.0, np.random.default_rng(0))
  np.testing.assert_array_equal(got, [1, 0])
