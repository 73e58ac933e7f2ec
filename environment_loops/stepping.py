"""Base classes of K environments that are stepped together."""

import abc
from collections.abc import Sequence
import logging
from typing import NamedTuple

import gymnasium
import numpy as np

from murmuration.environment_loops import actions as actions_lib
from murmuration.environment_loops import environments
from murmuration.environment_loops import faults

RAISE = 'raise'
DROP = 'drop'

_logger = logging.getLogger(__name__)


class StepBatch(NamedTuple):
  """What K environments did in one step.

  Read only: `next_observation` may be the same array as `observation`.

  Rows of environments that rest say nothing.

  Attributes:
    observation: the true arrival observation o_{t+1}, which at the end of an
      episode is its final one, float32 (uint8 for images) [K, ...].
    reward: r_t in the environment's own units, float32 [K].
    discount: 0 at a termination, else 1 (also at a time limit), float32 [K].
    last: whether the episode ended, either way, bool [K].
    next_observation: what to act on next, like `observation`. Where `last`, the
      first observation of the next episode.
    valid: False where the step is not experience, bool [K]; None, nearly
      always, if no step is invalid. Only environments that drop faulty episodes
      set it. Where False, the episode ended without an arrival: `observation`
      is the one acted on, reward 0, discount 1, `last` True.
  """

  observation: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  last: np.ndarray
  next_observation: np.ndarray
  valid: np.ndarray | None = None


class Arrival(NamedTuple):
  """The result of stepping K environments, before new episodes begin.

  Attributes:
    observation: true arrivals [K, ...]: a new array, of the spec's dtype.
    reward: float32 [K], a new array.
    terminated: bool [K].
    truncated: other than by the spec's time limit, bool [K]; None: nowhere.
    unstable: where the simulation is unstable, bool [K]; None: nowhere.
  """

  observation: np.ndarray
  reward: np.ndarray
  terminated: np.ndarray
  truncated: np.ndarray | None = None
  unstable: np.ndarray | None = None


class VectorEnvironment(abc.ABC):
  """K independent environments of one kind, stepped together."""

  # What was wrong with the episode that was dropped last; '' before.
  last_fault = ''

  def __init__(self, spec: environments.Spec, num: int):
    check_num(num)
    self._spec = spec
    self._num = int(num)

  @property
  def num(self) -> int:
    """The number K of environments."""
    return self._num

  @property
  def spec(self) -> environments.Spec:
    return self._spec

  @property
  def faults(self) -> int:
    """Number of episodes dropped because of a fault."""
    return 0

  @abc.abstractmethod
  def reset(self) -> np.ndarray:
    """Starts all episodes; returns observations, float32 or uint8 [K, ...]."""

  @abc.abstractmethod
  def step(self, actions: np.ndarray) -> StepBatch:
    """Steps each environment once; where an episode ends, starts the next.

    Args:
      actions: integers [K] in 0 .. num_actions-1, or floats [K, ...] in [-1, 1]
        if actions are continuous.

    Raises:
      ValueError: the environments do not have these actions.
      EnvironmentFault: a non-finite observation or reward, or an unstable
        simulation, unless faulty episodes are dropped.
      RuntimeError: `reset` was not called before the first step.
    """

  def reseed(self, index: int, seed: int) -> None:
    """Sets the seed of the next episode of one environment.

    The current episode goes on, but may change from here on if the
    environment's steps are random too.

    Raises:
      NotImplementedError: episodes of these environments have no seeds.
    """
    raise NotImplementedError(
      f'Episodes of {self._spec.name} cannot be given a seed one by one.'
    )

  def rest(self, index: int) -> None:
    """Says that one environment's steps will be ignored until a reset of all.

    Its simulation is not stepped any more, where the others can be without it.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Frees the environments."""


class EpisodeStepper(VectorEnvironment):
  """Handles ends, faults and resets, for subclasses that only simulate.

  A subclass creates its simulations (`_make`), begins episodes (`_begin`) and
  steps (`_advance`).
  """

  # Whether `_advance` steps only where not `_resting`, and leaves the
  # observation as it was elsewhere.
  _can_rest = False

  def __init__(
    self, spec: environments.Spec, seeds: Sequence[int], on_fault: str = RAISE
  ):
    """Initializes the common part, then calls `_make`.

    Args:
      seeds: one for each environment.
      on_fault: `RAISE` an `EnvironmentFault`, or `DROP` the episode; raises
        ValueError if it is neither.
    """
    super().__init__(spec, len(seeds))
    if on_fault not in (RAISE, DROP):
      raise ValueError(
        f'on_fault={on_fault!r}; give {RAISE!r} to stop at a faulty step, or '
        f'{DROP!r} to drop its episode and go on.'
      )
    self._on_fault = on_fault
    self._faults = 0
    self._shape = (self._num, *spec.observation_shape)
    self._dtype = np.dtype(spec.observation_dtype)
    # Observations in bytes are always finite.
    self._checked = self._dtype.kind == 'f'
    self._t = np.zeros(self._num, np.int64)
    # Without a time limit, a step number that is never reached. Arrays, because
    # NumPy takes twice as long for a small array and a Python number.
    limit = spec.max_episode_steps or np.iinfo(np.int64).max
    self._limit = np.full(self._num, limit)
    self._one = np.ones(self._num, np.int64)
    self._acted_on = np.zeros(self._shape, self._dtype)
    self._started = False
    self._resting: np.ndarray | None = None  # bool [K]; None if none rests
    # By index, what is wrong with observations that do not fit into the batch;
    # their steps count as unstable.
    self._misshapen: dict[int, faults.EnvironmentFault] = {}
    self._make(seeds)

  def _make(self, seeds: Sequence[int]) -> None:
    """Creates the simulations; by default there are none."""

  @property
  def faults(self) -> int:
    return self._faults

  def reset(self) -> np.ndarray:
    observation = np.empty(self._shape, self._dtype)
    self._resting = None
    self._begin_all(range(self._num), observation)
    self._acted_on = observation
    self._started = True
    return observation

  def step(self, actions: np.ndarray) -> StepBatch:
    check_started(self._started)
    observation, reward, terminated, truncated, unstable = self._advance(
      np.asarray(actions)
    )
    self._t += self._one
    last = terminated | (self._t >= self._limit)
    if truncated is not None:
      last |= truncated
    discount = (~terminated).astype(np.float32)
    valid = None
    if not self._sound(observation, reward, unstable):
      valid = self._drop(observation, reward, unstable)
      dropped = ~valid
      observation[dropped] = self._acted_on[dropped]
      reward[dropped] = 0.0
      discount[dropped] = 1.0
      last |= dropped
    if self._resting is not None:
      last &= ~self._resting
    next_observation = observation
    if np.count_nonzero(last):
      next_observation = observation.copy()
      self._begin_all(np.flatnonzero(last).tolist(), next_observation)
    self._acted_on = next_observation
    return StepBatch(
      observation, reward, discount, last, next_observation, valid
    )

  def rest(self, index: int) -> None:
    if not self._can_rest:
      return
    if self._resting is None:
      self._resting = np.zeros(self._num, np.bool_)
    self._resting[index] = True

  def close(self) -> None:
    """Does nothing: what is held is freed with the object."""

  @abc.abstractmethod
  def _begin(self, index: int, out: np.ndarray) -> None:
    """Starts an episode in one environment; writes `out[index]`."""

  def _stepped(self) -> Sequence[int]:
    """The environments that do not rest, in order."""
    if self._resting is None:
      return range(self._num)
    return np.flatnonzero(~self._resting).tolist()

  @abc.abstractmethod
  def _advance(self, actions: np.ndarray) -> Arrival:
    """Steps each environment once."""

  def _begin_all(self, indices: Sequence[int], out: np.ndarray) -> None:
    for index in indices:
      self._begin(index, out)
      self._t[index] = 0
    # Raised even with DROP: an environment whose first observation is not
    # finite would drop one episode after another.
    if self._checked and not _finite(out):
      index = int(np.flatnonzero(_not_finite(out))[0])
      raise faults.fault(self._spec.name, 0, 'observation', out[index], index)

  def _sound(
    self,
    observation: np.ndarray,
    reward: np.ndarray,
    unstable: np.ndarray | None,
  ) -> bool:
    """Whether the step is valid in all K environments."""
    if self._checked and not _finite(observation):
      return False
    if not _finite(reward):
      return False
    return unstable is None or not unstable.any()

  def _drop(
    self,
    observation: np.ndarray,
    reward: np.ndarray,
    unstable: np.ndarray | None,
  ) -> np.ndarray:
    """Raises or logs the faults; returns where there are none, bool [K]."""
    if unstable is None:
      unstable = np.zeros(self._num, np.bool_)
    bad = unstable | ~np.isfinite(reward) | _not_finite(observation)
    for index in np.flatnonzero(bad).tolist():
      where = (self._spec.name, int(self._t[index]))
      values = observation[index]
      if index in self._misshapen:
        error = self._misshapen.pop(index)
      elif unstable[index]:
        error = faults.unstable(*where, index)
      elif not np.isfinite(values).all():
        error = faults.fault(*where, 'observation', values, index)
      else:
        error = faults.fault(*where, 'reward', reward[index], index)
      if self._on_fault == RAISE:
        raise error
      self._faults += 1
      self.last_fault = str(error)
      faults.say_dropped(_logger, self._faults, error)
    return ~bad

  def _discrete(self, actions: np.ndarray) -> np.ndarray:
    """Checks discrete actions; returns them as int64 [K], from 0."""
    num_actions = self._spec.num_actions
    assert num_actions is not None, self._spec
    return actions_lib.to_discrete(
      self._spec.name, num_actions, actions, (self._num,)
    )

  def _continuous(
    self, space: gymnasium.spaces.Box, actions: np.ndarray
  ) -> np.ndarray:
    """Maps actions in [-1, 1] to the bounds of `space`, [K, ...]."""
    return actions_lib.to_native(self._spec.name, space, actions, (self._num,))


def check_started(started: bool) -> None:
  """Raises RuntimeError if a vector environment has not been reset."""
  if not started:
    raise RuntimeError('step() came before reset(); call reset() once first.')


def check_num(num: int) -> None:
  """Raises ValueError unless `num` is a valid number of environments."""
  if isinstance(num, bool) or not isinstance(num, (int, np.integer)) or num < 1:
    raise ValueError(f'num={num!r} environments; give an integer from 1 up.')


def _finite(array: np.ndarray) -> bool:
  """Whether all numbers are finite. `all` would take three times as long."""
  return np.count_nonzero(np.isfinite(array)) == array.size


def _not_finite(array: np.ndarray) -> np.ndarray:
  """Which rows of [K, ...] hold NaN or infinity, bool [K]."""
  return ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
