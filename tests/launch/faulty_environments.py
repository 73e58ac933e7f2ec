"""Environments that misbehave; `faulty_environments:Id-v0` registers them.

FAULTY_RELEASE names a file: until it exists, Slow-v0 takes its time.
"""

import os
import pathlib
import time

import gymnasium
from gymnasium.envs.classic_control import cartpole
from gymnasium.envs.classic_control import pendulum
import numpy as np

_SLOW_S = 0.004  # per step, until released


class Slow(cartpole.CartPoleEnv):
  """CartPole at the pace of a test that wants to kill something meanwhile."""

  def step(self, action):
    if not pathlib.Path(os.environ['FAULTY_RELEASE']).exists():
      time.sleep(_SLOW_S)
    return super().step(action)


class _NaNRewards:
  """Rewards are NaN from the fifth step of an episode on."""

  def reset(self, **kwargs):
    self._t = 0
    return super().reset(**kwargs)

  def step(self, action):
    self._t += 1
    observation, reward, *rest = super().step(action)
    return observation, reward if self._t < 5 else np.nan, *rest


class TurnsNaN(_NaNRewards, cartpole.CartPoleEnv):
  """CartPole that pays NaN from the fifth step of an episode on."""


class SwingsToNaN(_NaNRewards, pendulum.PendulumEnv):
  """Pendulum that pays NaN from the fifth step of an episode on."""


for _class in (Slow, TurnsNaN, SwingsToNaN):
  gymnasium.register(
    f'{_class.__name__}-v0',
    entry_point=f'{__name__}:{_class.__name__}',
    max_episode_steps=40,
  )
