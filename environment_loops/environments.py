"""Gymnasium environments as dm_env environments.

What is fixed here, once, for everything that follows:

- observations and rewards become float32 here and nowhere else; images stay
  uint8;
- termination is `dm_env.termination` (discount 0), a time limit is
  `dm_env.truncation` (discount 1); if both come at once, termination wins;
- observations that are no array are flattened, and actions of several integers
  are numbered (`spaces.py`);
- discrete actions are 0 .. n-1 whatever the environment's own start is;
- continuous actions are canonical: [-1, 1], clipped, mapped to [low, high];
- a non-finite observation or reward, or a simulation that started over by
  itself, is an `EnvironmentFault` at the step where it appears.
"""

import dataclasses
import functools
import math
import sys
import threading
from typing import Any

import dm_env
from dm_env import specs
import gymnasium
import numpy as np

from murmuration.environment_loops import actions
from murmuration.environment_loops import building
from murmuration.environment_loops import faults
from murmuration.environment_loops import making
from murmuration.environment_loops import spaces as spaces_lib

EnvironmentRefused = faults.EnvironmentRefused
EnvironmentFault = faults.EnvironmentFault
build = building.build

_PAGE = 'See docs/your_environment.md.'
_EXACT = 2**24  # whole numbers up to here are float32


@dataclasses.dataclass(frozen=True)
class Spec:
  """What an agent must know of an environment.

  Attributes:
    name: gymnasium id, with options for Atari (`atari.py`).
    observation_shape: shape of one observation.
    num_actions: number of discrete actions, None if actions are continuous.
    action_shape: shape of one action; () if actions are discrete.
    action_minimum: lower bounds, flat, in the environment's own units; None if
      actions are discrete. Agents use [-1, 1] all the same.
    action_maximum: upper bounds, likewise.
    max_episode_steps: environment steps until truncation, None if unlimited.
    observation_dtype: 'uint8' for images that come as bytes, else 'float32'.
    observation_maximum: largest number in an observation; None if unbounded.
  """

  name: str
  observation_shape: tuple[int, ...]
  num_actions: int | None
  action_shape: tuple[int, ...] = ()
  action_minimum: tuple[float, ...] | None = None
  action_maximum: tuple[float, ...] | None = None
  max_episode_steps: int | None = None
  observation_dtype: str = 'float32'
  observation_maximum: float | None = None

  @property
  def discrete(self) -> bool:
    """Whether actions are integers 0 .. num_actions-1."""
    return self.num_actions is not None


def spec(name: str) -> Spec:
  """Returns what an agent must know of the environment `name`.

  The environment is built once, looked at and closed.

  Args:
    name: gymnasium id such as 'CartPole-v1', or 'module:Id-v0', or an Atari
      game with or without options (`atari.py`).

  Raises:
    EnvironmentRefused: unknown id, missing package, or spaces that no agent
      here can use.
  """
  return _look(name)[0]


def spaces(name: str) -> tuple[Any, Any]:
  """Observation and action space that the environment itself has.

  Those of `build` may be others, see `spaces.py`. Raises as `spec` does.
  """
  return _look(name)[1]


def forget() -> None:
  """Has environments looked at anew: a name may mean another one since."""
  _look.cache_clear()


@functools.cache
def _look(name: str) -> tuple[Spec, tuple[Any, Any]]:
  before = threading.enumerate()
  environment = build(name)
  try:
    return _spec_of(name, environment), spaces_lib.own(environment)
  finally:
    building.close(name, environment)
    making.warn_of_threads(name, before)


def require_discrete(environment_spec: Spec, agent: str = 'this agent') -> int:
  """Returns the number of actions; refuses continuous actions.

  Raises:
    EnvironmentRefused: the actions are not discrete.
  """
  if environment_spec.num_actions is None:
    raise EnvironmentRefused(
      f'{environment_spec.name} takes continuous actions (Box of shape '
      f'{environment_spec.action_shape}), but {agent} needs discrete actions. '
      f'Choose an environment with a Discrete action space, for example '
      f'CartPole-v1, or an agent for continuous control.'
    )
  return environment_spec.num_actions


def make(
  name: str, seed: int, render_mode: str | None = None
) -> 'GymnasiumEnvironment':
  """Makes one environment.

  Args:
    name: gymnasium id.
    seed: seed of the first reset; later episodes continue its random stream.
    render_mode: passed to gymnasium; 'rgb_array' makes `render()` work.

  Raises:
    EnvironmentRefused: as for `spec`.
    ValueError: the seed is negative.
  """
  check_seed(seed)
  environment_spec = spec(name)
  return GymnasiumEnvironment(
    build(name, render_mode), environment_spec, int(seed)
  )


class GymnasiumEnvironment(dm_env.Environment):
  """One gymnasium environment seen as a dm_env environment."""

  def __init__(
    self, environment: gymnasium.Env, environment_spec: Spec, seed: int
  ):
    self._environment = environment
    self._spec = environment_spec
    self._seed: int | None = seed
    self._space: Any = environment.action_space
    self._dtype = np.dtype(environment_spec.observation_dtype)
    self._clock = building.SimulationClock(environment)
    self._needs_reset = True
    self._t = 0

  @property
  def spec(self) -> Spec:
    """What an agent must know of this environment."""
    return self._spec

  def reset(self) -> dm_env.TimeStep:
    """Starts an episode."""
    observation = faults.first(
      self._spec.name, self._environment.reset, seed=self._seed
    )
    # Seeding again would replay the same episode for ever.
    self._seed = None
    self._needs_reset = False
    self._t = 0
    self._clock.restart()
    return dm_env.restart(self._observation(observation))

  def step(self, action: Any) -> dm_env.TimeStep:
    """Takes one step; after the last step of an episode, starts the next one.

    Args:
      action: int in 0 .. num_actions-1, or float array of `action_shape` in
        [-1, 1] (values outside are clipped).

    Raises:
      ValueError: an action that the environment does not have.
      EnvironmentFault: a non-finite observation or reward, or an unstable
        simulation.
    """
    if self._needs_reset:
      return self.reset()
    native = self._native(action)
    found: Any = None
    try:
      found = self._environment.step(native)
      observation, reward, terminated, truncated, _ = found
      reward = np.float32(faults.reward(reward))
    except (TypeError, ValueError) as e:
      faults.check_step(self._spec.name, found, e)
      raise
    self._t += 1
    if self._clock.went_back():
      raise faults.unstable(self._spec.name, self._t)
    observation = self._observation(observation)
    if not math.isfinite(reward):
      raise faults.fault(self._spec.name, self._t, 'reward', reward)
    self._needs_reset = bool(terminated or truncated)
    return arrival(reward, observation, bool(terminated), bool(truncated))

  def observation_spec(self) -> specs.Array:
    return specs.Array(
      self._spec.observation_shape, self._dtype, name='observation'
    )

  def action_spec(self) -> specs.BoundedArray:
    if self._spec.num_actions is not None:
      return specs.DiscreteArray(self._spec.num_actions, name='action')
    return specs.BoundedArray(
      self._spec.action_shape, np.float32, -1.0, 1.0, name='action'
    )

  def reward_spec(self) -> specs.Array:
    return specs.Array((), np.float32, name='reward')

  def discount_spec(self) -> specs.BoundedArray:
    return specs.BoundedArray((), np.float32, 0.0, 1.0, name='discount')

  @property
  def frames_per_second(self) -> float | None:
    """Speed at which frames look natural, None if the environment is mute."""
    return self._environment.metadata.get('render_fps')

  def render(self) -> Any:
    """Returns a frame as `building.picture` does, if made to render."""
    return building.picture(self._environment)

  def close(self) -> None:
    building.close(self._spec.name, self._environment)

  def _observation(self, observation: Any) -> np.ndarray:
    # A copy: some environments return their own buffer and write to it later.
    observation = np.array(
      faults.observation(
        self._spec.name, observation, self._spec.observation_shape, self._dtype
      ),
      self._dtype,
    )
    if self._dtype.kind == 'f' and not np.isfinite(observation).all():
      raise faults.fault(self._spec.name, self._t, 'observation', observation)
    return observation

  def _native(self, action: Any) -> Any:
    name, num_actions = self._spec.name, self._spec.num_actions
    if num_actions is None:
      return actions.to_native(name, self._space, np.asarray(action))
    index = actions.to_discrete(name, num_actions, np.asarray(action))
    return int(index) + int(self._space.start)


def arrival(
  reward: np.float32,
  observation: np.ndarray,
  terminated: bool,
  truncated: bool,
) -> dm_env.TimeStep:
  """The timestep a step leads to; termination wins over truncation.

  As `dm_env.transition` and its kin, with the discount in float32, which is
  what the specs promise.
  """
  last = terminated or truncated
  return dm_env.TimeStep(
    step_type=dm_env.StepType.LAST if last else dm_env.StepType.MID,
    reward=reward,
    discount=np.float32(0.0 if terminated else 1.0),
    observation=observation,
  )


def check_seed(seed: int) -> None:
  """Refuses a seed that gymnasium cannot take.

  Raises:
    ValueError: not a non-negative integer.
  """
  if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
    raise ValueError(f'seed={seed!r} is not an integer; give one from 0 up.')
  if seed < 0:
    raise ValueError(f'seed={seed} is negative; give one from 0 up.')


def _spec_of(name: str, environment: gymnasium.Env) -> Spec:
  observations: Any = getattr(environment, 'observation_space', None)
  space: Any = getattr(environment, 'action_space', None)
  _check_spaces(name, observations, space)
  for box in spaces_lib.boxes(spaces_lib.own(environment)[0]):
    ends = box.low.min(initial=0), box.high.max(initial=0)
    largest = max(abs(float(end)) for end in ends)
    if np.dtype(box.dtype).kind in 'iu' and largest > _EXACT:
      print(
        f'note: {name} observes whole numbers of up to {largest:,.0f}. As '
        f'float32, those above {_EXACT:,} are rounded. Scale them, or split '
        'them into several numbers, if small differences matter.',
        file=sys.stderr,
        flush=True,
      )
  registered = environment.spec
  assert registered is not None, name
  # Bytes with fewer axes are not images: the 128 of Atari's memory, say. Nor
  # are those with more than a stack of images has.
  image = observations.dtype == np.uint8 and 2 <= len(observations.shape) <= 4
  maximum = float(np.max(observations.high))
  result = Spec(
    name=name,
    observation_shape=tuple(observations.shape),
    num_actions=None,
    max_episode_steps=registered.max_episode_steps,
    observation_dtype='uint8' if image else 'float32',
    observation_maximum=maximum if np.isfinite(maximum) else None,
  )
  if isinstance(space, gymnasium.spaces.Discrete):
    return dataclasses.replace(result, num_actions=int(space.n))
  return dataclasses.replace(
    result,
    action_shape=tuple(space.shape),
    action_minimum=tuple(map(float, space.low.ravel())),
    action_maximum=tuple(map(float, space.high.ravel())),
  )


def _check_spaces(name: str, observations: Any, actions: Any) -> None:
  """Refuses spaces that no agent has."""
  box = isinstance(observations, gymnasium.spaces.Box)
  if not box or 0 in observations.shape:
    raise EnvironmentRefused(
      f'{name} has observation_space={observations!s:.200}. Agents need a Box, '
      'or a space without images that gymnasium flattens to 1 to '
      f'{spaces_lib.MOST_NUMBERS:,} numbers. {_PAGE}'
    )
  if isinstance(actions, gymnasium.spaces.Discrete):
    fits = actions.n > 1
  else:
    box = isinstance(actions, gymnasium.spaces.Box)
    fits = box and actions.dtype.kind == 'f' and 0 not in actions.shape
    fits = fits and actions.is_bounded()
  if not fits:
    raise EnvironmentRefused(
      f'{name} has action_space={actions!s:.200}. Agents need a Box of floats '
      'with finite bounds, or integers with 2 to '
      f'{spaces_lib.MOST_ACTIONS:,} combinations. {_PAGE}'
    )
