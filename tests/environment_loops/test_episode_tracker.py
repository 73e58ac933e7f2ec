"""Episodes of K environments added up as they go by."""

import numpy as np
import pytest

from environment_loops import counting
from environment_loops import observers


def test_each_episode_is_reported_once_with_its_return_and_length():
  num = 4
  plan = counting.Plan()
  environment = counting.make_vector(num)
  tracker = observers.EpisodeTracker(num)
  environment.reset()
  next_episode = [0] * num
  returns = []
  for step_index in range(1, 101):
    step = environment.step(np.zeros(num, np.int32))
    finished = tracker.observe(step)
    assert [done.index for done in finished] == np.flatnonzero(
      step.last
    ).tolist()
    for done in finished:
      episode = next_episode[done.index]
      next_episode[done.index] += 1
      assert done.length == plan.length(done.index, episode)
      assert done.episode_return == sum(
        plan.reward(done.index, episode, t) for t in range(1, done.length + 1)
      )
      returns.append(done.episode_return)
    assert tracker.num_steps == num * step_index
    assert tracker.num_episodes == len(returns)
  assert tracker.recent_mean == pytest.approx(np.mean(returns[-100:]))


def test_running_episodes_can_be_read_and_not_written():
  environment = counting.make_vector(2, lengths=(5,))
  tracker = observers.EpisodeTracker(2)
  environment.reset()
  for _ in range(2):
    tracker.observe(environment.step(np.zeros(2, np.int32)))
  np.testing.assert_array_equal(tracker.running_lengths, [2, 2])
  np.testing.assert_array_equal(tracker.running_returns, [3, 200_003])
  tracker.running_returns[:] = 0
  np.testing.assert_array_equal(tracker.running_returns, [3, 200_003])


def test_the_recent_mean_covers_the_window_only():
  environment = counting.make_vector(1, lengths=(1, 2))
  tracker = observers.EpisodeTracker(1, window=1)
  assert tracker.recent_mean is None and tracker.recent_mean_length is None
  environment.reset()
  for _ in range(3):
    tracker.observe(environment.step(np.zeros(1, np.int32)))
  assert tracker.num_episodes == 2
  assert tracker.recent_mean == 101 + 102
  assert tracker.recent_mean_length == 2


def test_a_restart_drops_what_was_running():
  environment = counting.make_vector(1, lengths=(3,))
  tracker = observers.EpisodeTracker(1)
  environment.reset()
  tracker.observe(environment.step(np.zeros(1, np.int32)))
  environment.reset()
  tracker.restart()
  for _ in range(3):
    finished = tracker.observe(environment.step(np.zeros(1, np.int32)))
  assert finished == [observers.Finished(0, 101 + 102 + 103, 3)]


def test_sizes_below_one_are_refused():
  with pytest.raises(ValueError, match='num=0'):
    observers.EpisodeTracker(0)
  with pytest.raises(ValueError, match='window=0'):
    observers.EpisodeTracker(2, window=0)
