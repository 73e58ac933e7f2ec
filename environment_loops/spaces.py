"""Turns the spaces of environments into those that agents have.

An agent observes one array of numbers. It chooses an integer, or an array of
floats. Other observations are flattened as `gymnasium.spaces.flatten` does it,
where a Discrete one becomes one-hot. Other actions of integers are numbered:
each combination of their parts has a number, the last part varies fastest.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
from gymnasium import spaces
import numpy as np

from murmuration.environment_loops import faults

MOST_ACTIONS = 1_024  # combinations: a network has an output for each
MOST_NUMBERS = 1_000_000  # in a flattened observation


def adapted(name: str, environment: gymnasium.Env) -> gymnasium.Env:
  """Wraps an environment where its spaces need it."""
  if flattened(getattr(environment, 'observation_space', None)) is not None:
    environment = _Flat(name, environment)
  if numbered(getattr(environment, 'action_space', None)) is not None:
    environment = _Numbered(environment)
  return environment


def own(environment: gymnasium.Env) -> tuple[Any, Any]:
  """Observation and action space without `adapted`."""
  while isinstance(environment, (_Flat, _Numbered)):
    environment = environment.env
  return environment.observation_space, environment.action_space


def boxes(space: Any) -> list[spaces.Box]:
  """The Boxes in a space, those inside a Dict or a Tuple too."""
  if isinstance(space, spaces.Dict):
    space = tuple(space.values())
  if isinstance(space, (tuple, spaces.Tuple)):
    return [box for part in space for box in boxes(part)]
  return [space] if isinstance(space, spaces.Box) else []


def flattened(space: Any) -> Any:
  """The Box of flattened observations; None if they are not flattened."""
  if not isinstance(space, gymnasium.Space):
    return None
  if isinstance(space, spaces.Box) and space.shape:
    return None
  if any(box.dtype == np.uint8 and len(box.shape) > 2 for box in boxes(space)):
    return None  # images
  try:
    if space.is_np_flattenable and 1 <= spaces.flatdim(space) <= MOST_NUMBERS:
      return spaces.flatten_space(space)
  except NotImplementedError:  # a class of the user's own
    pass
  return None


def flatten(name: str, space: Any, observation: Any) -> np.ndarray:
  """One observation of an environment's own space, one that is `flattened`.

  Raises:
    EnvironmentFault: the space does not have it.
  """
  try:
    return _flat(space, observation)
  except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
    raise faults.EnvironmentFault(
      f'{name}: the observation {observation!r:.200} is not one of '
      f'{space!s:.200} ({type(e).__name__}: {e}).'
    ) from e


def _flat(space: Any, value: Any) -> np.ndarray:
  """As gymnasium, which casts Boxes and takes a Discrete -1 for the last."""
  if isinstance(space, (spaces.Dict, spaces.Tuple)):
    keys: Any = space if isinstance(space, spaces.Dict) else range(len(space))
    return np.concatenate([_flat(space[key], value[key]) for key in keys])
  if isinstance(space, spaces.Box):
    return np.ravel(value)
  if not space.contains(value):
    raise ValueError(f'{value!r:.200} is not in {space!s:.200}')
  return np.asarray(spaces.flatten(space, value))


def numbered(space: Any) -> Any:
  """The Discrete of numbered actions; None if they are not numbered."""
  sizes = _sizes(space)
  if not sizes or math.prod(sizes) > MOST_ACTIONS:
    return None
  # A single integer stays what it is.
  start = 0 if space.shape else int(space.low)
  return spaces.Discrete(math.prod(sizes), start=start)


def native(space: Any, chosen: Any) -> Any:
  """What an environment takes.

  Args:
    space: its own action space, Discrete or one that is `numbered`.
    chosen: integers from 0, of any shape.
  """
  if isinstance(space, spaces.Discrete):
    return chosen + int(space.start)
  sizes = np.array(_sizes(space), np.int64)
  strides = np.append(sizes[:0:-1].cumprod()[::-1], 1)
  parts = np.asarray(chosen)[..., None] // strides % sizes
  low = getattr(space, 'start', getattr(space, 'low', 0))
  found = parts.reshape((*np.shape(chosen), *space.shape)) + low
  return np.asarray(found, space.dtype)


def _sizes(space: Any) -> list[int]:
  """How many values each part of an action has; [] if it has no parts."""
  if isinstance(space, spaces.MultiDiscrete):
    return space.nvec.ravel().tolist()
  if isinstance(space, spaces.MultiBinary):
    return [2] * math.prod(space.shape)
  if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
    ends = zip(space.low.ravel().tolist(), space.high.ravel().tolist())
    return [high - low + 1 for low, high in ends]
  return []


class _Flat(gymnasium.ObservationWrapper):
  """Flattens observations."""

  def __init__(self, name: str, environment: gymnasium.Env):
    super().__init__(environment)
    self._name = name
    self.observation_space = flattened(environment.observation_space)

  def observation(self, observation: Any) -> Any:
    return flatten(self._name, self.env.observation_space, observation)


class _Numbered(gymnasium.ActionWrapper):
  """Takes the number of an action, or the action itself if it has parts."""

  def __init__(self, environment: gymnasium.Env):
    super().__init__(environment)
    self.action_space = numbered(environment.action_space)

  def action(self, action: Any) -> Any:
    if np.shape(action):
      return action
    space: Any = self.action_space
    return native(self.env.action_space, action - int(space.start))
