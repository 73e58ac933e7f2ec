"""Returns as they are reported: undiscounted, unscaled, whole episodes."""

import logging

import numpy as np
import pytest

from murmuration.environment_loops import environments
from murmuration.environment_loops import evaluation
from murmuration.environment_loops import stepping
from murmuration.environment_loops import vector
from tests import counting


class _Breaks(stepping.EpisodeStepper):
  """Counting environments that give NaN where (index, episode, t) is named."""

  def __init__(self, num, breaks, plan=None):
    spec = environments.Spec('counting', (3,), 2)
    super().__init__(spec, range(num), vector.DROP)
    self._plan, self._breaks = plan or counting.Plan(), breaks
    self._episode = np.full(num, -1)

  def close(self):
    """Holds nothing."""

  def _begin(self, index, out):
    self._episode[index] += 1
    out[index] = self._plan.observation(index, self._episode[index], 0)

  def _advance(self, actions):
    at = [
      (index, int(self._episode[index]), int(self._t[index]) + 1)
      for index in range(self.num)
    ]
    reward = [
      np.nan if where in self._breaks else self._plan.reward(*where)
      for where in at
    ]
    ends = [t == self._plan.length(index, e) for index, e, t in at]
    return stepping.Arrival(
      np.stack([self._plan.observation(*where) for where in at]),
      np.array(reward, np.float32),
      np.array(ends),
    )


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
    assert result == _episode_return(plan, 0, episode)


def test_the_policy_sees_a_batch_of_one():
  seen = []

  def policy(observations):
    seen.append(observations)
    return _zeros(observations)

  evaluation.run_episode(policy, counting.make(lengths=(3,)))
  assert [o.tolist() for o in seen] == [[[0, 0, 0]], [[0, 1, 0]], [[0, 2, 0]]]


def test_an_episode_can_be_cut():
  result = evaluation.run_episode(_zeros, counting.make(), max_steps=3)
  assert result == 1 + 2 + 3


def test_a_stopped_episode_gives_no_result():
  calls = []

  def stop_at_the_third_step():
    calls.append(None)
    return len(calls) > 2

  environment = counting.make(lengths=(10,))
  stop = stop_at_the_third_step
  assert evaluation.run_episode(_zeros, environment, should_stop=stop) is None
  assert len(calls) == 3


def test_side_by_side_only_the_first_episode_of_each_counts(monkeypatch):
  plan, ended = counting.Plan(), []
  environment = counting.make_vector(6)
  monkeypatch.setattr(environment, 'rest', ended.append)
  returns, broken = evaluation.first_episodes(_zeros, environment)
  assert broken == 0
  # Each is left alone from then on; the shortest comes first.
  assert sorted(ended) == list(range(6))
  lengths = [plan.length(index, 0) for index in ended]
  assert lengths == sorted(lengths)
  expected = [_episode_return(plan, index, 0) for index in range(6)]
  assert returns.dtype == np.float64
  np.testing.assert_array_equal(returns, expected)


def test_side_by_side_episodes_can_be_cut_and_stopped():
  vector_environment = counting.make_vector(2, lengths=(4,))
  returns = evaluation.first_episodes(
    _zeros, vector_environment, max_steps=2
  ).returns
  np.testing.assert_array_equal(returns, [3, 200_003])
  stopped = evaluation.first_episodes(
    _zeros, counting.make_vector(2), should_stop=lambda: True
  )
  assert stopped is None


def test_side_by_side_equals_one_by_one_on_mountain_car():
  result = evaluation.evaluate_vector(_zeros, 'MountainCar-v0', 3, seed=0)
  np.testing.assert_array_equal(result.returns, [-200, -200, -200])


def test_a_balancing_policy_earns_500_on_cartpole_both_ways():
  def balance(observations):
    lean = observations @ np.array([0.1, 0.3, 1.0, 1.0], np.float32)
    return (lean > 0).astype(np.int32)

  result = evaluation.evaluate_vector(balance, 'CartPole-v1', 10, seed=0)
  np.testing.assert_array_equal(result.returns, 500.0)
  assert result.mean == 500.0 and result.std == 0.0
  environment = environments.make('CartPole-v1', seed=0)
  result = evaluation.run_episode(balance, environment)
  assert result == 500.0


def test_continuous_actions_are_evaluated_too():
  def still(observations):
    return np.zeros((len(observations), 1), np.float32)

  environment = environments.make('Pendulum-v1', seed=0)
  result = evaluation.run_episode(still, environment)
  assert -2000 < result < 0
  returns = evaluation.evaluate_vector(still, 'Pendulum-v1', 2, seed=0).returns
  assert (returns < 0).all()


def test_the_same_seed_gives_the_same_returns():
  def by_sign(observations):
    return (observations[:, 2] > 0).astype(np.int32)

  first = evaluation.evaluate_vector(by_sign, 'CartPole-v1', 5, seed=3)
  again = evaluation.evaluate_vector(by_sign, 'CartPole-v1', 5, seed=3)
  np.testing.assert_array_equal(first.returns, again.returns)


def test_where_an_episode_breaks_the_next_whole_one_counts(caplog):
  plan = counting.Plan()
  # Environment 1 has its first whole episode after two; environment 2 breaks
  # when what counts is over.
  breaks = {(1, 0, 2), (1, 1, 1), (2, 1, 3)}
  with caplog.at_level(logging.WARNING):
    result = evaluation.first_episodes(_zeros, _Breaks(4, breaks))
  expected = [
    _episode_return(plan, index, episode)
    for index, episode in enumerate((0, 2, 0, 0))
  ]
  np.testing.assert_array_equal(result.returns, expected)
  assert result.broken == 2
  assert '2 episodes of counting broke while a policy was eval' in caplog.text


def test_an_episode_in_place_of_a_broken_one_is_cut_by_its_own_length():
  environment = _Breaks(2, {(0, 0, 3)}, counting.Plan(lengths=(9,)))
  result = evaluation.first_episodes(_zeros, environment, max_steps=4)
  ten = 1 + 2 + 3 + 4
  np.testing.assert_array_equal(result.returns, [ten + 400, ten + 400_000])


def test_an_evaluation_of_broken_episodes_ends_with_an_error_or_is_given_up():
  always = {(1, episode, 1) for episode in range(1000)}
  match = (
    'counting broke 10 episodes in a row .* only 1 of 2 were whole.* The last: '
    r'counting returned reward nan at step 1 of [^.]* parameter\. Mend'
  )
  with pytest.raises(environments.EnvironmentFault, match=match):
    evaluation.first_episodes(_zeros, _Breaks(2, always))
  result = evaluation.first_episodes(
    _zeros, _Breaks(2, always), on_fault=vector.DROP
  )
  assert result.returns.shape == (0,) and result.broken == 10
  assert np.isnan([result.mean, result.std]).all()


def test_an_evaluation_by_name_does_not_wait_for_ever_either(register):
  name = register(max_episode_steps=9, bad_reward_at=2)
  with pytest.raises(environments.EnvironmentFault, match='only 0 of 3'):
    evaluation.evaluate_vector(_zeros, name, 3, seed=0)
  result = evaluation.evaluate_vector(
    _zeros, name, 3, seed=0, on_fault=vector.DROP
  )
  assert len(result.returns) == 0 and result.broken == 30


def test_a_policy_that_remembers_is_told_where_an_episode_broke():
  told = []

  class Remembers:
    def __call__(self, observations):
      return _zeros(observations)

    def ended(self, last):
      told.append(last.tolist())

  environment = _Breaks(2, {(1, 0, 2)}, counting.Plan(lengths=(4,)))
  evaluation.first_episodes(Remembers(), environment)
  assert told == [[False, True]]


def test_a_policy_that_remembers_begins_anew_with_each_evaluation():
  said = []

  class Remembers:
    def reset(self):
      said.append('reset')

    def __call__(self, observations):
      said.append(len(observations))
      return _zeros(observations)

  plan = counting.Plan(lengths=(1,))
  environment = counting.CountingEnvironment(plan)
  policy = Remembers()
  evaluation.run_episode(policy, environment)
  evaluation.run_episode(policy, environment)
  evaluation.first_episodes(policy, _Breaks(2, (), plan))
  evaluation.first_episodes(policy, _Breaks(3, (), plan))
  assert said == ['reset', 1, 'reset', 1, 'reset', 2, 'reset', 3]


def test_what_may_take_long_is_open_while_copies_are_made_and_reset(
  monkeypatch,
):
  said = []

  class Open:
    def __enter__(self):
      said.append('open')

    def __exit__(self, *error):
      said.append('closed')

  class Notes(counting.CountingVectorEnvironment):
    def reset(self):
      said.append('reset')
      return super().reset()

    def close(self):
      said.append('freed')

  def make(name, num, seed, on_fault):
    said.append('made')
    return Notes(num, counting.Plan(lengths=(1,)))

  monkeypatch.setattr(vector, 'make_vector', make)
  evaluation.evaluate_vector(_zeros, 'counting', 2, 0, building=Open())
  assert said == ['open', 'made', 'closed', 'open', 'reset', 'closed', 'freed']


def test_with_epsilon_some_actions_are_drawn_and_the_same_seed_draws_the_same():
  def balance(observations):
    lean = observations @ np.array([0.1, 0.3, 1.0, 1.0], np.float32)
    return (lean > 0).astype(np.int32)

  def means(epsilon):
    found = evaluation.evaluate_vector(
      balance, 'CartPole-v1', 10, seed=0, epsilon=epsilon
    )
    return found.mean

  assert means(0.0) == 500.0
  # As a random policy: 22 steps.
  assert 10 < means(1.0) < 60 and means(1.0) == means(1.0)


def test_epsilon_needs_discrete_actions():
  with pytest.raises(environments.EnvironmentRefused, match='epsilon'):
    evaluation.evaluate_vector(_zeros, 'Pendulum-v1', 1, 0, epsilon=0.1)


def test_counts_below_one_are_refused():
  with pytest.raises(ValueError, match='num_episodes=-1'):
    evaluation.evaluate_vector(_zeros, 'CartPole-v1', -1, seed=0)
  with pytest.raises(ValueError, match='max_steps=0'):
    evaluation.run_episode(_zeros, counting.make(), max_steps=0)
  with pytest.raises(ValueError, match='max_steps=0'):
    evaluation.first_episodes(_zeros, counting.make_vector(1), max_steps=0)
