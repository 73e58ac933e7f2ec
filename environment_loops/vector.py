"""K environments stepped together in one process.

Gymnasium's own vector environment is used where it is the fast one (CartPole);
otherwise K environments are stepped in a Python loop. Both start the next
episode inside the step that ends one, so each step of each environment is one
true transition: there is never a reset disguised as a step.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from environment_loops import actions as actions_lib
from environment_loops import environments


class StepBatch(NamedTuple):
  """What K environments did in one step.

  Read only: `next_observation` may be the same array as `observation`.

  Attributes:
    observation: the true arrival observation o_{t+1}, at the end of an episode
      its final one, float32 [K, ...].
    reward: r_t in the environment's own units, float32 [K].
    discount: 0 where the episode terminated, else 1 (also at a time limit),
      float32 [K].
    last: whether the episode ended, either way, bool [K].
    next_observation: what to act on next: `observation`, or the first
      observation of the next episode where `last`, float32 [K, ...].
  """

  observation: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  last: np.ndarray
  next_observation: np.ndarray


class VectorEnvironment(abc.ABC):
  """K independent environments of one kind, stepped together."""

  def __init__(self, spec: environments.Spec, num: int):
    _check_num(num)
    self._spec = spec
    self._num = int(num)

  @property
  def num(self) -> int:
    """The number K of environments."""
    return self._num

  @property
  def spec(self) -> environments.Spec:
    """What an agent must know of each of the environments."""
    return self._spec

  @abc.abstractmethod
  def reset(self) -> np.ndarray:
    """Starts an episode in each environment.

    Returns:
      First observations, float32 [K, ...].
    """

  @abc.abstractmethod
  def step(self, actions: np.ndarray) -> StepBatch:
    """Steps each environment once; where an episode ends, starts the next.

    Args:
      actions: integers [K] in 0 .. num_actions-1, or floats [K, ...] in [-1, 1]
        where actions are continuous.

    Raises:
      ValueError: actions that the environments do not have.
      EnvironmentFault: a non-finite observation or reward.
      RuntimeError: `reset` was not called before the first step.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Frees what the environments hold."""


def make_vector(name: str, num: int, seed: int) -> VectorEnvironment:
  """Makes K environments with a stream of randomness each.

  Args:
    name: gymnasium id.
    num: the number K of environments.
    seed: environment k is seeded with `environment_seeds(seed, num)[k]`.

  Raises:
    EnvironmentRefused: unknown id, missing package or unusable spaces.
    ValueError: `num` or `seed` out of range.
  """
  _check_num(num)
  spec = environments.spec(name)
  seeds = environment_seeds(seed, num)
  registered = gymnasium.registry[name.rpartition(':')[2]]
  if registered.vector_entry_point == _CARTPOLE and not registered.kwargs:
    return _CartPoles(spec, seeds)
  return _Copies(spec, seeds)


def environment_seeds(seed: int, num: int) -> list[int]:
  """Seeds of K environments: far apart even where base seeds are neighbours.

  Args:
    seed: base seed, from 0 up.
    num: the number K of environments.

  Returns:
    K integers below 2^31. The first k do not depend on K.
  """
  environments.check_seed(seed)
  _check_num(num)
  words = np.random.SeedSequence(int(seed)).generate_state(num)
  # Some environments pass the seed on to a C int.
  return [int(word) >> 1 for word in words]


class _Copies(VectorEnvironment):
  """K gymnasium environments, one after the other."""

  def __init__(self, spec: environments.Spec, seeds: list[int]):
    super().__init__(spec, len(seeds))
    self._seeds: list[Any] = list(seeds)
    self._environments = [environments.build(spec.name) for _ in seeds]
    self._steps = [environment.step for environment in self._environments]
    self._space: Any = self._environments[0].action_space
    self._shape = (self._num, *spec.observation_shape)
    self._t = np.zeros(self._num, np.int64)
    self._started = False

  def reset(self) -> np.ndarray:
    observation = np.empty(self._shape, np.float32)
    for index in range(self._num):
      self._reset_one(index, observation)
    self._t[:] = 0
    _check_finite(self, self._t, observation)
    self._started = True
    return observation

  def step(self, actions: np.ndarray) -> StepBatch:
    check_started(self._started)
    observation = np.empty(self._shape, np.float32)
    reward = np.empty(self._num, np.float32)
    discount = np.ones(self._num, np.float32)
    last = np.zeros(self._num, np.bool_)
    native = self._native(np.asarray(actions))
    for index, step in enumerate(self._steps):
      arrival, reward[index], terminated, truncated, _ = step(native[index])
      observation[index] = arrival
      if terminated:
        discount[index] = 0.0
        last[index] = True
      elif truncated:
        last[index] = True
    self._t += 1
    _check_finite(self, self._t, observation, reward)
    next_observation = observation
    if last.any():
      next_observation = observation.copy()
      for index in np.flatnonzero(last).tolist():
        self._reset_one(index, next_observation)
      self._t[last] = 0
      _check_finite(self, self._t, next_observation)
    return StepBatch(observation, reward, discount, last, next_observation)

  def close(self) -> None:
    for environment in self._environments:
      environment.close()

  def _reset_one(self, index: int, out: np.ndarray) -> None:
    first, _ = self._environments[index].reset(seed=self._seeds[index])
    # Seeding again would replay the same episode for ever.
    self._seeds[index] = None
    environments.check_shape(self._spec, np.shape(first))
    out[index] = first

  def _native(self, actions: np.ndarray) -> Any:
    name, num_actions = self._spec.name, self._spec.num_actions
    lead = (self._num,)
    if num_actions is None:
      return actions_lib.to_native(name, self._space, actions, lead)
    actions = actions_lib.to_discrete(name, num_actions, actions, lead)
    return (actions + self._space.start).tolist()


_CARTPOLE = 'gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv'


class _CartPoles(VectorEnvironment):
  """Gymnasium's CartPoleVectorEnv with resets of our own.

  It resets in the step after the end: that step ignores its action and would
  look like a transition. Here the state is drawn anew before it comes to that,
  from a generator per environment, as CartPoleEnv draws it: environment k
  follows the single gymnasium environment with the same seed.
  """

  def __init__(self, spec: environments.Spec, seeds: list[int]):
    super().__init__(spec, len(seeds))
    vector: Any = gymnasium.make_vec(
      spec.name, len(seeds), vectorization_mode='vector_entry_point'
    )
    self._vector = vector.unwrapped
    self._draws: list[Callable[..., np.ndarray]] = [
      gymnasium.utils.seeding.np_random(seed)[0].uniform for seed in seeds
    ]
    self._started = False

  def reset(self) -> np.ndarray:
    self._vector.reset(seed=0)
    observation = np.empty((self._num, 4), np.float32)
    for index in range(self._num):
      self._reset_one(index, observation)
    self._started = True
    return observation

  def step(self, actions: np.ndarray) -> StepBatch:
    check_started(self._started)
    vector = self._vector
    actions = actions_lib.to_discrete(
      self._spec.name, 2, np.asarray(actions), (self._num,)
    )
    arrival, reward, terminated, truncated, _ = vector.step(actions)
    observation = np.ascontiguousarray(arrival)
    _check_finite(self, vector.steps, observation, reward)
    discount = np.subtract(1.0, terminated, dtype=np.float32)
    last = terminated | truncated
    next_observation = observation
    if last.any():
      next_observation = observation.copy()
      for index in np.flatnonzero(last).tolist():
        self._reset_one(index, next_observation)
    return StepBatch(observation, reward, discount, last, next_observation)

  def close(self) -> None:
    self._vector.close()

  def _reset_one(self, index: int, out: np.ndarray) -> None:
    vector = self._vector
    state = self._draws[index](low=vector.low, high=vector.high, size=(4,))
    vector.state[:, index] = state
    vector.steps[index] = 0
    vector.prev_done[index] = False
    out[index] = state


def check_started(started: bool) -> None:
  """Raises RuntimeError if a vector environment was never reset."""
  if not started:
    raise RuntimeError('step() came before reset(); call reset() once first.')


def _check_num(num: int) -> None:
  if isinstance(num, bool) or not isinstance(num, (int, np.integer)) or num < 1:
    raise ValueError(f'num={num!r} environments; give an integer from 1 up.')


def _check_finite(
  environment: VectorEnvironment, t: np.ndarray, *arrays: np.ndarray
) -> None:
  """Raises EnvironmentFault if observations or rewards are not finite."""
  for field, array in zip(('observation', 'reward'), arrays, strict=False):
    if not np.isfinite(array).all():
      bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
      index = int(np.flatnonzero(bad)[0])
      raise environments.fault(
        environment.spec.name, int(t[index]), field, array[index], index
      )
