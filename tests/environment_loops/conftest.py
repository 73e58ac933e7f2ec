"""Small gymnasium environments that end, fail and are shaped as tests need."""

import itertools

import gymnasium
import numpy as np
import pytest

_BOX = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Toy(gymnasium.Env):
  """Counts its steps; what goes wrong, and when, is an argument.

  Observation: [t, last action]. Reward: the action as the environment saw it.
  """

  def __init__(
    self,
    actions=None,
    observations=_BOX,
    terminate_at=None,
    truncate_at=None,
    bad_observation_at=None,
    bad_reward_at=None,
    bad_value=np.nan,
    bad_shape=False,
    bad_from_episode=0,
  ):
    self.action_space = actions or gymnasium.spaces.Discrete(2)
    self.observation_space = observations
    self._terminate_at = terminate_at
    self._truncate_at = truncate_at
    self._bad_observation_at = bad_observation_at
    self._bad_reward_at = bad_reward_at
    self._bad_value = bad_value
    self._bad_from_episode = bad_from_episode
    self._episode = -1
    self._bad_shape = bad_shape
    # One buffer, returned each time: a wrapper that keeps it would go wrong.
    self._buffer = np.zeros(3 if bad_shape else 2, observations.dtype)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._t = 0
    self._episode += 1
    self._buffer[:] = 0.0
    if self._bad_observation_at == 0:
      self._buffer[1] = self._bad_value
    return self._buffer, {}

  def step(self, action):
    assert self.action_space.contains(action), action
    self._t += 1
    value = float(np.ravel(action)[0])
    self._buffer[:2] = self._t, value
    if self._t == self._bad_observation_at:
      self._buffer[1] = self._bad_value
    bad = self._t == self._bad_reward_at
    bad = bad and self._episode >= self._bad_from_episode
    reward = self._bad_value if bad else value
    terminated = self._t == self._terminate_at
    truncated = self._t == self._truncate_at
    return self._buffer, reward, terminated, truncated, {}


# Specs are cached by name: no name may come twice, in any test.
_VERSIONS = itertools.count()


@pytest.fixture
def register():
  """Registers toys for one test: register(max_episode_steps, **toy_kwargs)."""
  names = []

  def add(entry_point=Toy, max_episode_steps=None, **kwargs):
    name = f'MurmurationToy-v{next(_VERSIONS)}'
    gymnasium.register(
      name, entry_point, max_episode_steps=max_episode_steps, kwargs=kwargs
    )
    names.append(name)
    return name

  yield add
  for name in names:
    del gymnasium.registry[name]
