"""From the actions agents use to the actions environments take.

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
  """Checks discrete actions; returns them as int64, shape `lead`.

  Args:
    name: names the environment in errors.
    num_actions: how many there are.
    actions: integers of any width.
    lead: the shape needed, () for one action, (K,) for a batch.

  Raises:
    ValueError: wrong shape, not integers, or out of range.
  """
  if actions.shape != lead or actions.dtype.kind not in 'iu':
    raise ValueError(
      f'{name} got actions of shape {actions.shape} and dtype '
      f'{actions.dtype}; it needs integers of shape {lead} in '
      f'0 .. {num_actions - 1}.'
    )
  actions = actions.astype(np.int64)
  # Seen as unsigned, a negative action is huge: one comparison for both ends.
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
  """Maps canonical actions [-1, 1] to the bounds of a Box, clipping first.

  Args:
    name: names the environment in errors.
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
  # np.clip costs several times what these do on a small batch.
  unit = np.minimum(np.maximum(actions, -1.0), 1.0)
  unit = (unit.astype(np.float64) + 1.0) / 2.0
  low = space.low.astype(np.float64)
  native = low + unit * (space.high.astype(np.float64) - low)
  native = native.astype(space.dtype)
  return np.minimum(np.maximum(native, space.low), space.high)
