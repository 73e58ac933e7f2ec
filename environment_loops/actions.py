"""Converts the actions of agents into actions of environments.

Agents use integers from 0, or floats in [-1, 1], whatever the environment.
"""

import gymnasium
import numpy as np


def to_discrete(
  name: str,
  num_actions: int,
  actions: np.ndarray,
  lead: tuple[int, ...] = (),
) -> np.ndarray:
  """Checks discrete actions, any integers; returns int64, shape `lead`.

  `lead` is () for one action, (K,) for a batch; errors name the environment.

  Raises:
    ValueError: wrong shape, not integers, or not in 0 .. num_actions - 1.
  """
  if actions.shape != lead or actions.dtype.kind not in 'iu':
    raise ValueError(
      f'{name} got actions of shape {actions.shape} and dtype '
      f'{actions.dtype}; it needs integers of shape {lead} in '
      f'0 .. {num_actions - 1}.'
    )
  actions = actions.astype(np.int64)
  # As unsigned, a negative action is huge: one comparison checks both ends.
  if np.maximum.reduce(actions.view(np.uint64), axis=None) >= num_actions:
    raise ValueError(
      f'{name} got actions {actions.tolist()}; each must be in '
      f'0 .. {num_actions - 1}.'
    )
  return actions


def to_native(
  name: str,
  space: gymnasium.spaces.Box,
  actions: np.ndarray,
  lead: tuple[int, ...] = (),
) -> np.ndarray:
  """Clips canonical actions to [-1, 1] and maps them to the bounds of a Box.

  Args:
    name: name of the environment, for errors.
    space: the action space of one environment.
    actions: float, `lead` + `space.shape`.
    lead: leading axes, () for one action, (K,) for a batch.

  Returns:
    Actions of the same shape in [low, high], in the dtype of the space.

  Raises:
    ValueError: wrong shape or NaN.
  """
  shape = lead + tuple(space.shape)
  if actions.shape != shape:
    raise ValueError(
      f'{name} got actions of shape {actions.shape}; it needs floats of shape '
      f'{shape} in [-1, 1].'
    )
  if np.isnan(actions).any():
    raise ValueError(
      f'{name} got a NaN action; it needs floats in [-1, 1]. Look for '
      f'non-finite parameters in the policy.'
    )
  # np.clip costs several times as much on a small batch.
  unit = np.minimum(np.maximum(actions, -1.0), 1.0)
  unit = (unit.astype(np.float64) + 1.0) / 2.0
  low = space.low.astype(np.float64)
  # Their difference may be more than a float64 holds.
  native = low * (1.0 - unit) + space.high.astype(np.float64) * unit
  native = native.astype(space.dtype)
  return np.minimum(np.maximum(native, space.low), space.high)
