"""Returns as they are reported: undiscounted, unscaled, whole episodes."""

import numpy as np
import pytest

from environment_loops import counting
from environment_loops import environments
from environment_loops import evaluation


def _zeros(observations):
  return np.zeros(len(observations), np.int32)


def _episode_return(plan, index, episode):
  length = plan.length(index, episode)
  return sum(plan.reward(index, episode, t) for t in range(1, length + 1))


def test_the_return_is_the_plain_sum_of_rewards():
  plan = counting.Plan()
  environment = counting.make()
  for episode in range(6):
    result = evaluation.run_episode(_zeros, environment)
    assert result == evaluation.EpisodeResult(
      _episode_return(plan, 0, episode), plan.length(0, episode)
    )


def test_evaluate_plays_the_episodes_in_turn():
  results = evaluation.evaluate(_zeros, counting.make(), num_episodes=5)
  assert [r.length for r in results] == [5, 2, 1, 7, 5]


def test_the_policy_sees_a_batch_of_one():
  seen = []

  def policy(observations):
    seen.append(observations)
    return _zeros(observations)

  evaluation.run_episode(policy, counting.make(lengths=(3,)))
  assert [o.tolist() for o in seen] == [[[0, 0, 0]], [[0, 1, 0]], [[0, 2, 0]]]


def test_an_episode_can_be_cut():
  result = evaluation.run_episode(_zeros, counting.make(), max_steps=3)
  assert result == evaluation.EpisodeResult(1 + 2 + 3, 3)


def test_a_stopped_episode_gives_no_result():
  calls = []

  def stop_at_the_third_step():
    calls.append(None)
    return len(calls) > 2

  environment = counting.make(lengths=(10,))
  stop = stop_at_the_third_step
  assert evaluation.run_episode(_zeros, environment, should_stop=stop) is None
  assert len(calls) == 3


def test_a_stopped_evaluation_keeps_the_whole_episodes():
  calls = []

  def stop():
    calls.append(None)
    return len(calls) > 8

  results = evaluation.evaluate(_zeros, counting.make(), 10, should_stop=stop)
  assert [r.length for r in results] == [5, 2, 1]


def test_side_by_side_only_the_first_episode_of_each_counts():
  plan = counting.Plan()
  returns = evaluation.first_episodes(_zeros, counting.make_vector(6))
  expected = [_episode_return(plan, index, 0) for index in range(6)]
  assert returns.dtype == np.float64
  np.testing.assert_array_equal(returns, expected)


def test_side_by_side_episodes_can_be_cut_and_stopped():
  vector_environment = counting.make_vector(2, lengths=(4,))
  returns = evaluation.first_episodes(_zeros, vector_environment, max_steps=2)
  np.testing.assert_array_equal(returns, [3, 200_003])
  stopped = evaluation.first_episodes(
    _zeros, counting.make_vector(2), should_stop=lambda: True
  )
  assert stopped is None


def test_side_by_side_equals_one_by_one_on_mountain_car():
  returns = evaluation.evaluate_vector(_zeros, 'MountainCar-v0', 3, seed=0)
  np.testing.assert_array_equal(returns, [-200, -200, -200])


def test_a_balancing_policy_earns_500_on_cartpole_both_ways():
  def balance(observations):
    lean = observations @ np.array([0.1, 0.3, 1.0, 1.0], np.float32)
    return (lean > 0).astype(np.int32)

  returns = evaluation.evaluate_vector(balance, 'CartPole-v1', 10, seed=0)
  np.testing.assert_array_equal(returns, 500.0)
  environment = environments.make('CartPole-v1', seed=0)
  results = evaluation.evaluate(balance, environment, 2)
  assert results == [evaluation.EpisodeResult(500.0, 500)] * 2


def test_continuous_actions_are_evaluated_too():
  def still(observations):
    return np.zeros((len(observations), 1), np.float32)

  environment = environments.make('Pendulum-v1', seed=0)
  result = evaluation.run_episode(still, environment)
  assert result.length == 200 and -2000 < result.episode_return < 0
  returns = evaluation.evaluate_vector(still, 'Pendulum-v1', 2, seed=0)
  assert (returns < 0).all()


def test_the_same_seed_gives_the_same_returns():
  def by_sign(observations):
    return (observations[:, 2] > 0).astype(np.int32)

  first = evaluation.evaluate_vector(by_sign, 'CartPole-v1', 5, seed=3)
  again = evaluation.evaluate_vector(by_sign, 'CartPole-v1', 5, seed=3)
  np.testing.assert_array_equal(first, again)


def test_counts_below_one_are_refused():
  with pytest.raises(ValueError, match='num_episodes=0'):
    evaluation.evaluate(_zeros, counting.make(), 0)
  with pytest.raises(ValueError, match='num_episodes=-1'):
    evaluation.evaluate_vector(_zeros, 'CartPole-v1', -1, seed=0)
  with pytest.raises(ValueError, match='max_steps=0'):
    evaluation.run_episode(_zeros, counting.make(), max_steps=0)
