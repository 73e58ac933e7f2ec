"""What an environment can do wrong, and how it is said."""

from collections.abc import Callable
import logging
import os
import re
import traceback
from typing import Any

import numpy as np

_KEEP = 'The environment must keep to the space it declares.'
# Kinds of numbers that become uint8 or float32 without loss of meaning.
_TAKES = {'u': 'u', 'f': 'fiub'}
# Dropped episodes that are logged one by one; after these, one in a hundred is.
_LOGGED = 10
_WRAPPERS = os.path.join('gymnasium', 'wrappers', '')
# The end of an advice, for who trains.
TO_DROP = ", or drop such episodes with run.on_fault='drop'"


class EnvironmentRefused(ValueError):
  """The environment cannot be used; the message says why and what to do."""


class ContractBroken(EnvironmentRefused):
  """The environment breaks its interface during a run, and would again."""

  no_restart_helps = True  # The engine ends the run.


class EnvironmentFault(RuntimeError):
  """A running environment produced something that is not experience."""


def gist(error: BaseException) -> str:
  """An error in a line, with the place that raised it."""
  frames = traceback.extract_tb(error.__traceback__)
  place = f' ({frames[-1].filename}:{frames[-1].lineno})' if frames else ''
  return f'{type(error).__name__}: {error}{place}'


def say_dropped(
  logger: logging.Logger, number: int, error: BaseException
) -> None:
  """Logs that an episode was dropped; `number` counts them from 1."""
  if number <= _LOGGED or number % 100 == 0:
    logger.warning('Episode dropped, number %d: %s', number, error)


def observation(
  name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
  """An observation as an array, which may be the environment's own.

  Args:
    name: of the environment.
    value: what it returned.
    shape: of its observation space.
    dtype: that observations are stored as: uint8, or float32 for all numbers.

  Raises:
    EnvironmentFault: another shape, or numbers that the dtype cannot take.
  """
  try:
    found = np.asarray(value)
  except ValueError as e:  # lists of different lengths
    raise EnvironmentFault(
      f'{name} returned an observation that is no array ({e}). {_KEEP}'
    ) from e
  if found.shape != shape:
    raise EnvironmentFault(
      f'{name} returned an observation of shape {found.shape}, but its '
      f'observation space has shape {shape}. {_KEEP}'
    )
  wraps = dtype.kind == 'u' and found.dtype.itemsize > dtype.itemsize
  if wraps or found.dtype.kind not in _TAKES[dtype.kind]:
    raise EnvironmentFault(
      f'{name} returned an observation of dtype {found.dtype}, but '
      f'observations of it are {dtype}. {_KEEP}'
    )
  return found


def first(name: str, reset: Callable[..., Any], **options: Any) -> Any:
  """The observation of what `reset` returns.

  Args:
    name: of the environment.
    reset: its own.
    **options: that it is called with, `seed` among them.

  Raises:
    EnvironmentFault: it is of gymnasium before 0.26, or something else.
  """
  try:
    returned = reset(**options)
  except TypeError as e:
    if not re.search(r"reset\(\) got an unexp.*'(seed|options)'", str(e)):
      raise
    raise EnvironmentFault(
      f'{name}.reset() has to take (*, seed=None, options=None): {e}.'
    ) from e
  if isinstance(returned, (tuple, list)) and len(returned) == 2:
    return returned[0]
  raise EnvironmentFault(
    f'{name}.reset() has to return (observation, info); it returned '
    f'{_types(returned)}.'
  )


def reward(value: Any) -> float:
  """A reward as a number, also where it is in an array of one.

  Raises:
    TypeError, ValueError: it is None, which NumPy takes for NaN, or none or
      several numbers, or no number. `check_step` says it.
  """
  return float(value.item() if isinstance(value, np.ndarray) else value)


def check_step(name: str, returned: Any, error: Exception) -> None:
  """Raises what `error` comes of, if `step` returned something else.

  Args:
    name: of the environment.
    returned: by `step`; None where it raised.
    error: that it raised, or that taking its result apart did.

  Raises:
    EnvironmentFault: with what it has to return.
  """
  if returned is None:
    frames = traceback.extract_tb(error.__traceback__)
    # A wrapper around the environment takes the result apart first.
    apart = len(frames) == 1 or _WRAPPERS in frames[-1].filename
    if not apart or 'unpack' not in str(error):
      return
  found = str(error) if returned is None else _types(returned)
  raise EnvironmentFault(
    f'{name}.step() has to return (observation, reward, terminated, truncated, '
    f'info), with a number for the reward; it returned something else: {found}.'
  ) from error


def _types(returned: Any) -> str:
  if not isinstance(returned, tuple):
    return type(returned).__name__
  return f'({", ".join(type(part).__name__ for part in returned)})'


def fault(
  name: str,
  t: int,
  field: str,
  values: Any,
  index: int | None = None,
) -> EnvironmentFault:
  """The error for non-finite values of `field` at step `t` of an episode."""
  values = np.asarray(values)
  bad = np.argwhere(~np.isfinite(values))[0]
  where = f' (component {tuple(bad.tolist())})' if bad.size else ''
  advice = 'Fix the environment'
  if t:  # what begins broken is never dropped
    advice += f', wrap it so that it ends the episode instead{TO_DROP}'
  return EnvironmentFault(
    f'{name} returned {field} {values[tuple(bad)]}{where} at step {t} of an '
    f'episode{_copy(index)}, but needs finite float32 values: one NaN in '
    f'replay would reach every parameter. {advice}.'
  )


def unstable(name: str, t: int, index: int | None = None) -> EnvironmentFault:
  """The error for a simulator that gave up at step `t` of an episode.

  MuJoCo answers a diverged state with its initial one: finite numbers, but no
  consequence of the action.
  """
  return EnvironmentFault(
    f'{name} became unstable at step {t} of an episode{_copy(index)}: MuJoCo '
    f'found NaN, infinity or a huge value in its state and started over by '
    f'itself, so this step is no experience. Use smaller actions or a smaller '
    f'time step{TO_DROP}.'
  )


def _copy(index: int | None) -> str:
  """Which of a batch."""
  return '' if index is None else f' in environment {index} of its batch'
