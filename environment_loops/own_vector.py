"""K environments of a user's own `gymnasium.vector.VectorEnv`.

It must not begin episodes by itself (AutoresetMode.DISABLED), so that final
observations, faults and next starts are distinguished here, as for all other
environments. `reset(options={'reset_mask': bool [K]})` resets some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.vector import utils as vector_utils
import numpy as np

from murmuration.environment_loops import building
from murmuration.environment_loops import environments
from murmuration.environment_loops import faults
from murmuration.environment_loops import spaces
from murmuration.environment_loops import stepping

_MODE = gymnasium.vector.AutoresetMode.DISABLED
_TRIED_STEPS = 100  # until an observation differs from an episode's first


class Vectors(stepping.EpisodeStepper):
  """Wraps what `vector_entry_point(num_envs=K)` makes."""

  def _make(self, seeds: Sequence[int]) -> None:
    name = self._spec.name
    entry: Any = building.registered(name).vector_entry_point
    try:
      if isinstance(entry, str):
        entry = registration.load_env_creator(entry)
      self._vector: Any = entry(num_envs=self._num)
    except (Exception, SystemExit) as error:
      raise faults.EnvironmentRefused(
        f'The vector environment of {name} could not be built with num_envs='
        f'{self._num}: {faults.gist(error)}. See whether it works by itself.'
      ) from error
    try:
      self._check()
    except faults.EnvironmentRefused:
      self.close()
      raise
    self._seeds: list[int | None] = list(seeds)

  def _check(self) -> None:
    """Refuses what cannot be stepped like copies of the single environment."""
    name = self._spec.name
    mode = getattr(self._vector, 'metadata', {}).get('autoreset_mode')
    if mode != _MODE:
      raise faults.EnvironmentRefused(
        f'The vector environment of {name} has autoreset_mode={mode}, which '
        'begins episodes by itself. Needed is metadata = '
        "{'autoreset_mode': gymnasium.vector.AutoresetMode.DISABLED}, and a "
        "reset that takes options['reset_mask'], bool [num_envs]: where to "
        'begin anew.'
      )
    self._seen, self._space = environments.spaces(name)
    for what, wanted in (
      ('observation_space', self._seen),
      ('action_space', self._space),
    ):
      found = getattr(self._vector, f'single_{what}', None)
      if not _alike(found, wanted):
        raise faults.EnvironmentRefused(
          f'The vector environment of {name} has single_{what}='
          f'{found!s:.200}, and the single one {wanted!s:.200}. Make both the '
          'same.'
        )
    self._rows = None
    if spaces.flattened(self._seen) is not None:
      self._rows = vector_utils.batch_space(self._seen, self._num)

  def try_reset(self) -> None:
    """Resets one of two environments while the other goes on.

    Raises:
      EnvironmentRefused: the other one did not go on.
    """
    first = self.reset()
    shape, seen = (self._num, *self._spec.action_shape), first
    rng = np.random.default_rng(0)
    for _ in range(_TRIED_STEPS):
      if self._spec.num_actions is not None:
        action = rng.integers(self._spec.num_actions, size=shape)
      else:
        action = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
      seen = self.step(action).next_observation
      if (seen[1] != first[1]).any():  # or a reset would not show
        break
    self._begin_all([0], seen.copy())

  def reseed(self, index: int, seed: int) -> None:
    self._seeds[index] = seed

  def close(self) -> None:
    building.close(self._spec.name, self._vector)

  def _begin(self, index: int, out: np.ndarray) -> None:
    raise NotImplementedError  # _begin_all is used instead

  def _begin_all(self, indices: Sequence[int], out: np.ndarray) -> None:
    chosen = list(indices)
    mask = np.zeros(self._num, np.bool_)
    mask[chosen] = True
    # Environments that are not reset need no seed.
    seeds = [seed if own else None for seed, own in zip(self._seeds, mask)]
    first = faults.first(
      self._own_name(),
      self._vector.reset,
      seed=None if seeds == [None] * self._num else seeds,
      options={'reset_mask': mask},
    )
    # The same seed again would repeat the same episode forever.
    for index in chosen:
      self._seeds[index] = None
    observation = self._observed(first).astype(self._dtype)
    going_on = ~mask
    if not np.array_equal(
      observation[going_on],
      out[going_on],
      equal_nan=self._checked,
    ):
      raise faults.ContractBroken(
        f'{self._own_name()} was reset with reset_mask={mask.tolist()} and '
        'returned other observations where the mask is False, too. A reset has '
        "to read options['reset_mask'], begin episodes where it is True, and "
        'return the newest observations elsewhere.'
      )
    out[chosen] = observation[chosen]
    self._t[chosen] = 0
    super()._begin_all((), out)  # checks that all are finite

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    if self._spec.discrete:
      native = spaces.native(self._space, self._discrete(actions))
    else:
      native = self._continuous(self._space, actions)
    found: Any = None
    try:
      found = self._vector.step(native)
      observation, reward, terminated, truncated, _ = found
      with np.errstate(over='ignore'):
        # Values beyond float32 become infinite, which is reported as a fault.
        observation = self._observed(observation).astype(self._dtype)
        reward = np.array(reward, np.float32)
      terminated = np.array(terminated, np.bool_)
      truncated = np.array(truncated, np.bool_)
    except (TypeError, ValueError) as e:
      faults.check_step(self._own_name(), found, e)
      raise
    for what, values in (
      ('rewards', reward),
      ('terminations', terminated),
      ('truncations', truncated),
    ):
      if values.shape != (self._num,):
        raise faults.EnvironmentFault(
          f'{self._spec.name} returned {what} of shape {values.shape} for '
          f'{self._num} environments. Return one number for each, of shape '
          f'{(self._num,)}.'
        )
    return stepping.Arrival(observation, reward, terminated, truncated)

  def _own_name(self) -> str:
    """Of its class, too: the single one has a `reset` and `step` as well."""
    return f'{self._spec.name}: {type(self._vector).__name__}'

  def _observed(self, value: Any) -> np.ndarray:
    name = self._spec.name
    if self._rows is not None:
      rows = vector_utils.iterate(self._rows, value)
      value = [spaces.flatten(name, self._seen, row) for row in rows]
    return faults.observation(name, value, self._shape, self._dtype)


def _alike(found: Any, wanted: Any) -> bool:
  """Whether two spaces are equal, apart from the precision of numbers."""
  both = (found, wanted)
  if not all(isinstance(space, gymnasium.spaces.Box) for space in both):
    return found == wanted
  if np.uint8 in (found.dtype, wanted.dtype) or found.shape != wanted.shape:
    return found == wanted
  return np.allclose([found.low, found.high], [wanted.low, wanted.high])
