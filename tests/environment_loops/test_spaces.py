"""Spaces that agents do not have, in single environments and in copies."""

import gymnasium
from gymnasium import spaces
import numpy as np
import pytest

from murmuration.environment_loops import environments
from murmuration.environment_loops import vector


class Samples(gymnasium.Env):
  """Shows what its observation space samples; keeps the actions it took."""

  taken: list = []
  shown: list = []

  def __init__(self, observations=None, actions=None):
    self.observation_space = observations or spaces.Discrete(3)
    self.action_space = actions or spaces.Discrete(2)

  def _what(self):
    self.shown.append(self.observation_space.sample())
    return self.shown[-1]

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.observation_space.seed(seed)
    return self._what(), {}

  def step(self, action):
    assert self.action_space.contains(action), action
    self.taken.append(action)
    return self._what(), 1.0, False, False, {}


@pytest.mark.parametrize(
  'space, size',
  [
    (spaces.Discrete(5), 5),
    (spaces.Discrete(3, start=-1), 3),
    (spaces.MultiDiscrete([2, 3]), 5),
    (spaces.MultiBinary(4), 4),
    (spaces.MultiBinary((2, 2)), 4),
    (spaces.Box(-1, 1, ()), 1),
    (spaces.Box(0, 9, (), np.int64), 1),
    (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2, 2))]), 6),
    (spaces.Dict({'b': spaces.Discrete(2), 'a': spaces.Box(0, 1, ())}), 3),
    (spaces.Dict({'of': spaces.Tuple([spaces.Box(0, 9, (2,), np.uint8)])}), 2),
    (spaces.Dict({'board': spaces.Box(0, 255, (3, 3), np.uint8)}), 9),
  ],
)
def test_observations_are_flattened_as_gymnasium_does_it(register, space, size):
  name = register(Samples, observations=space)
  assert environments.spec(name).observation_shape == (size,)
  assert environments.spec(name).observation_dtype == 'float32'
  environment = environments.make(name, seed=3)
  for begin in (environment.reset, lambda: environment.step(0)):
    seen = begin()
    wanted = spaces.flatten(space, Samples.shown[-1])
    np.testing.assert_array_equal(seen.observation, np.float32(wanted))
  copies = vector.make_vector(name, 2, seed=3)
  np.testing.assert_array_equal(
    copies.reset(),
    [np.float32(spaces.flatten(space, x)) for x in Samples.shown[-2:]],
  )
  assert copies.step(np.zeros(2, int)).observation.shape == (2, size)


@pytest.mark.parametrize(
  'space, every',
  [
    (spaces.MultiDiscrete([2, 2]), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    (spaces.MultiDiscrete([1, 2], start=[5, -1]), [[5, -1], [5, 0]]),
    (spaces.MultiDiscrete(np.array([[1, 2]])), [[[0, 0]], [[0, 1]]]),
    (spaces.MultiBinary(2), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    (spaces.Box(-1, 1, (1,), np.int32), [[-1], [0], [1]]),
    (spaces.Box(126, 127, (1,), np.int8), [[126], [127]]),
    (spaces.Box(3, 4, (), np.int64), [3, 4]),
    (spaces.Discrete(2, start=-3), [-3, -2]),
  ],
)
def test_whole_actions_are_numbered(register, space, every):
  name = register(Samples, actions=space)
  assert environments.spec(name).num_actions == len(every)
  environment = environments.make(name, 0)
  copies = vector.make_vector(name, 2, 0)
  environment.reset()
  copies.reset()
  for number, native in enumerate(every):
    del Samples.taken[:]
    environment.step(number)
    copies.step(np.full(2, number))
    assert len(Samples.taken) == 3
    for taken in Samples.taken:
      np.testing.assert_array_equal(taken, native)


def test_a_single_float_is_an_action(register):
  name = register(Samples, actions=spaces.Box(-2, 6, ()))
  environment = environments.make(name, 0)
  copies = vector.make_vector(name, 2, 0)
  environment.reset()
  copies.reset()
  del Samples.taken[:]
  environment.step(np.float32(0.5))
  copies.step(np.array([-1.0, 9.0], np.float32))
  assert Samples.taken == [4.0, -2.0, 6.0]


def test_what_is_built_takes_parts_as_well_as_their_number(register):
  name = register(Samples, actions=spaces.MultiDiscrete([2, 3]))
  environment = environments.build(name)
  environment.reset()
  del Samples.taken[:]
  for action in (4, np.array([1, 1])):
    environment.step(action)
  np.testing.assert_array_equal(*Samples.taken)


@pytest.mark.parametrize('shown', [-1, 3, 0.5, None])
def test_a_state_that_is_none_is_a_fault(register, shown):
  class Outside(Samples):
    def _what(self):
      return shown

  with pytest.raises(environments.EnvironmentFault, match='Discrete'):
    environments.make(register(Outside), 0).reset()


@pytest.mark.parametrize(
  'space, bad',
  [
    (spaces.Discrete(3), -1),
    (spaces.Dict({'a': spaces.Box(0, 1, (2,))}), {'a': np.full(2, np.nan)}),
    (spaces.Dict({'a': spaces.Box(0, 1, (2,))}), {'a': np.zeros(3)}),
    (spaces.Dict({'a': spaces.Box(0, 1, (2,))}), {'b': np.zeros(2)}),
    (spaces.Tuple([spaces.Discrete(2)]), ()),
  ],
)
def test_an_episode_with_what_cannot_be_flattened_is_dropped(
  register, space, bad
):
  class Breaks(Samples):
    steps = 0

    def step(self, action):
      self.steps += 1
      seen, *rest = super().step(action)
      return bad if self.steps == 2 else seen, *rest

  name = register(Breaks, observations=space)
  copies = vector.make_vector(name, 1, 0, vector.DROP)
  copies.reset()
  valid = [copies.step(np.zeros(1, int)).valid for _ in range(3)]
  assert valid == [None, [False], None] and copies.faults == 1
  copies = vector.make_vector(name, 1, 0)
  copies.reset()
  copies.step(np.zeros(1, int))
  with pytest.raises(environments.EnvironmentFault):
    copies.step(np.zeros(1, int))


def test_gymnasium_s_tasks_with_states_have_an_array():
  assert environments.spec('FrozenLake-v1').observation_shape == (16,)
  assert environments.spec('Blackjack-v1').observation_shape == (32 + 11 + 2,)
