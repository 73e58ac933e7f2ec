"""Episodes of K environments added up as they go by."""

import numpy as np
import pytest

from murmuration.environment_loops import observers
from murmuration.environment_loops import vector
from tests import counting


def test_each_episode_is_reported_once_with_its_return():
  num = 4
  plan = counting.Plan()
  environment = counting.make_vector(num)
  tracker = observers.EpisodeTracker(num)
  environment.reset()
  next_episode = [0] * num
  returns = []
  for _ in range(100):
    step = environment.step(np.zeros(num, np.int32))
    finished = tracker.observe(step)
    assert [done.index for done in finished] == np.flatnonzero(
      step.last
    ).tolist()
    for done in finished:
      episode = next_episode[done.index]
      next_episode[done.index] += 1
      assert done.episode_return == sum(
        plan.reward(done.index, episode, t)
        for t in range(1, plan.length(done.index, episode) + 1)
      )
      returns.append(done.episode_return)
  assert tracker.recent_mean == pytest.approx(np.mean(returns[-100:]))


def test_the_recent_mean_covers_the_window_only():
  environment = counting.make_vector(1, lengths=(1, 2))
  tracker = observers.EpisodeTracker(1, window=1)
  assert tracker.recent_mean is None
  environment.reset()
  for _ in range(3):
    tracker.observe(environment.step(np.zeros(1, np.int32)))
  assert tracker.recent_mean == 101 + 102


def test_what_a_broken_episode_paid_is_not_of_the_next_one():
  tracker, one = observers.EpisodeTracker(1), np.ones(1, np.float32)
  finished = []
  for last, valid in ((False, None), (True, np.zeros(1, bool)), (True, None)):
    ends = np.array([last])
    step = vector.StepBatch(one, one, one, ends, one, valid)
    finished += tracker.observe(step)
  assert finished == [observers.Finished(0, 1.0)]


def test_a_restart_drops_what_was_running():
  environment = counting.make_vector(1, lengths=(3,))
  tracker = observers.EpisodeTracker(1)
  environment.reset()
  tracker.observe(environment.step(np.zeros(1, np.int32)))
  environment.reset()
  tracker.restart()
  for _ in range(3):
    finished = tracker.observe(environment.step(np.zeros(1, np.int32)))
  assert finished == [observers.Finished(0, 101 + 102 + 103)]


def test_sizes_below_one_are_refused():
  with pytest.raises(ValueError, match='num=0'):
    observers.EpisodeTracker(0)
  with pytest.raises(ValueError, match='window=0'):
    observers.EpisodeTracker(2, window=0)
