"""The environment that counts must itself be beyond doubt."""

import numpy as np
import pytest

from tests import counting


def test_the_single_environment_follows_the_plan():
  plan = counting.Plan(lengths=(2, 3), endings=('termination', 'truncation'))
  environment = counting.CountingEnvironment(plan, index=4)
  for episode, length in enumerate((2, 3, 2, 3)):
    timestep = environment.reset()
    np.testing.assert_array_equal(timestep.observation, [episode, 0, 4])
    for t in range(1, length + 1):
      timestep = environment.step(0)
      np.testing.assert_array_equal(timestep.observation, [episode, t, 4])
      assert timestep.reward == t + 100 * episode + 400_000
      assert timestep.last() == (t == length)
    assert timestep.discount == (0.0 if episode % 2 == 0 else 1.0)


def test_a_step_after_the_end_starts_the_next_episode():
  environment = counting.make(lengths=(1,))
  assert environment.step(0).first()
  assert environment.step(0).last()
  timestep = environment.step(0)
  assert timestep.first()
  np.testing.assert_array_equal(timestep.observation, [1, 0, 0])


def test_the_vector_environment_is_the_single_ones_side_by_side():
  num = 5
  environment = counting.make_vector(num)
  singles = [counting.make(index) for index in range(num)]
  plan = counting.Plan()
  acted_on = environment.reset()
  expected = np.stack([single.reset().observation for single in singles])
  endings = set()
  for _ in range(60):
    np.testing.assert_array_equal(acted_on, expected)
    step = environment.step(np.zeros(num, np.int32))
    for index, single in enumerate(singles):
      timestep = single.step(0)
      np.testing.assert_array_equal(
        step.observation[index], timestep.observation
      )
      assert step.reward[index] == timestep.reward
      assert step.last[index] == timestep.last()
      assert step.discount[index] == timestep.discount
      episode, t, _ = timestep.observation.astype(int)
      assert step.last[index] == (t == plan.length(index, episode))
      if timestep.last():
        endings.add((index, bool(step.discount[index])))
        timestep = single.reset()
      expected[index] = timestep.observation
    acted_on = step.next_observation
  assert endings == {(i, d) for i in range(num) for d in (False, True)}


def test_rewards_are_exact_in_float32_and_all_different():
  plan = counting.Plan()
  seen = [
    np.float32(plan.reward(index, episode, t))
    for index in (0, 1, 99)
    for episode in (0, 1, 999)
    for t in (1, 2, 99)
  ]
  assert len(set(seen)) == len(seen)
  assert np.float32(plan.reward(99, 999, 99)) == plan.reward(99, 999, 99)


def test_impossible_plans_are_refused():
  with pytest.raises(ValueError, match='lengths'):
    counting.make(lengths=(3, 0))
  with pytest.raises(ValueError, match='endings'):
    counting.make(endings=('stop',))
  with pytest.raises(ValueError, match='num=0'):
    counting.make_vector(0)


def test_actions_and_order_of_calls_are_checked():
  environment = counting.make_vector(2, num_actions=3)
  with pytest.raises(RuntimeError, match='reset'):
    environment.step(np.zeros(2, np.int32))
  environment.reset()
  with pytest.raises(ValueError, match='counting got actions'):
    environment.step(np.array([0, 3]))
