"""Environments that misbehave; `faulty_environments:Id-v0` registers them.

FAULTY_RELEASE names a file: until it exists, Slow-v0 takes its time, which is
FAULTY_SLOW_S seconds per step where that is set.
FAULTY_ONCE names one too: who makes it misbehaves, and nobody after that.
"""

import os
import pathlib
import sys
import time

import gymnasium
from gymnasium.envs.classic_control import cartpole
from gymnasium.envs.classic_control import pendulum
import numpy as np

_SLOW_S = float(os.environ.get('FAULTY_SLOW_S', 0.004))


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


def _now(t):
  """Whether to misbehave in step `t`: 30 steps in, once if so said."""
  if t < 30:
    return False
  once = os.environ.get('FAULTY_ONCE')
  if once is None:
    return True
  try:
    pathlib.Path(once).touch(exist_ok=False)
  except FileExistsError:
    return False
  return True


class _Misbehaves(cartpole.CartPoleEnv):
  """CartPole that does something else after so many steps in all."""

  steps = 0

  def step(self, action):
    self.steps += 1
    if _now(self.steps):
      self.misbehave()
    return super().step(action)


class Hangs(_Misbehaves):
  """A step that never returns."""

  def misbehave(self):
    while True:
      hung_in_here()


def hung_in_here():
  time.sleep(0.5)


class HangsInReset(cartpole.CartPoleEnv):
  """A reset that never returns: not the first, which may take its time."""

  resets = 0

  def reset(self, **kwargs):
    self.resets += 1
    if _now(30 * (self.resets > 1)):
      while True:
        hung_in_here()
    return super().reset(**kwargs)


class Exits(_Misbehaves):
  """Ends its process politely."""

  def misbehave(self):
    sys.exit(0)


class Leaves(_Misbehaves):
  """Ends its process at once."""

  def misbehave(self):
    os._exit(0)


class RaisesInClose(cartpole.CartPoleEnv):
  """CartPole that cannot be closed."""

  def close(self):
    raise ValueError('the door is stuck')


class Endless(cartpole.CartPoleEnv):
  """An episode that never ends."""

  def step(self, action):
    observation, reward, *_ = super().step(action)
    if not self.observation_space.contains(observation):
      observation, _ = self.reset()
    return observation, reward, False, False, {}


for _class in (
  Slow,
  TurnsNaN,
  SwingsToNaN,
  Hangs,
  HangsInReset,
  Exits,
  Leaves,
  RaisesInClose,
):
  gymnasium.register(
    f'{_class.__name__}-v0',
    entry_point=f'{__name__}:{_class.__name__}',
    max_episode_steps=40,
  )

gymnasium.register('Endless-v0', entry_point=f'{__name__}:Endless')
