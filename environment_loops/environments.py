"""Gymnasium environments as dm_env environments.

What is fixed here, once, for everything that follows:

- observations and rewards become float32 here and nowhere else;
- termination is `dm_env.termination` (discount 0), a time limit is
  `dm_env.truncation` (discount 1); if both come at once, termination wins;
- discrete actions are 0 .. n-1 whatever the environment's own start is;
- continuous actions are canonical: [-1, 1], clipped, mapped to [low, high];
- a non-finite observation or reward is an `EnvironmentFault`, at the step
  where it appears.
"""

import dataclasses
import difflib
import functools
import importlib
import math
from typing import Any

import dm_env
from dm_env import specs
import gymnasium
import numpy as np

from environment_loops import actions


class EnvironmentRefused(ValueError):
  """The environment cannot be used; the message says why and what to do."""


class EnvironmentFault(RuntimeError):
  """A running environment produced something that is not experience."""


@dataclasses.dataclass(frozen=True)
class Spec:
  """What an agent must know of an environment.

  Attributes:
    name: gymnasium id.
    observation_shape: shape of one observation; always float32.
    num_actions: number of discrete actions, None if actions are continuous.
    action_shape: shape of one action; () if actions are discrete.
    action_minimum: lower bounds, flat, in the environment's own units; None if
      actions are discrete. Agents use [-1, 1] all the same.
    action_maximum: upper bounds, likewise.
    max_episode_steps: environment steps until truncation, None if unlimited.
    reward_threshold: episode return registered as solved, None if none is.
  """

  name: str
  observation_shape: tuple[int, ...]
  num_actions: int | None
  action_shape: tuple[int, ...] = ()
  action_minimum: tuple[float, ...] | None = None
  action_maximum: tuple[float, ...] | None = None
  max_episode_steps: int | None = None
  reward_threshold: float | None = None

  @property
  def discrete(self) -> bool:
    """Whether actions are integers 0 .. num_actions-1."""
    return self.num_actions is not None


@functools.cache
def spec(name: str) -> Spec:
  """Returns what an agent must know of the environment `name`.

  The environment is built once, looked at and closed.

  Args:
    name: gymnasium id such as 'CartPole-v1', or 'module:Id-v0'.

  Raises:
    EnvironmentRefused: unknown id, missing package, or spaces that no agent
      here can use.
  """
  environment = build(name)
  try:
    return _spec_of(name, environment)
  finally:
    environment.close()


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
    self._needs_reset = True
    self._t = 0

  @property
  def spec(self) -> Spec:
    """What an agent must know of this environment."""
    return self._spec

  def reset(self) -> dm_env.TimeStep:
    """Starts an episode."""
    observation, _ = self._environment.reset(seed=self._seed)
    # Seeding again would replay the same episode for ever.
    self._seed = None
    self._needs_reset = False
    self._t = 0
    return dm_env.restart(self._observation(observation))

  def step(self, action: Any) -> dm_env.TimeStep:
    """Takes one step; after the last step of an episode, starts the next one.

    Args:
      action: int in 0 .. num_actions-1, or float array of `action_shape` in
        [-1, 1] (values outside are clipped).

    Raises:
      ValueError: an action that the environment does not have.
      EnvironmentFault: a non-finite observation or reward.
    """
    if self._needs_reset:
      return self.reset()
    observation, reward, terminated, truncated, _ = self._environment.step(
      self._native(action)
    )
    self._t += 1
    observation = self._observation(observation)
    reward = np.float32(reward)
    if not math.isfinite(reward):
      raise fault(self._spec.name, self._t, 'reward', reward)
    self._needs_reset = bool(terminated or truncated)
    return arrival(reward, observation, bool(terminated), bool(truncated))

  def observation_spec(self) -> specs.Array:
    return specs.Array(
      self._spec.observation_shape, np.float32, name='observation'
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
    """Returns a frame, uint8 [height, width, 3], if made to render."""
    return self._environment.render()

  def close(self) -> None:
    self._environment.close()

  def _observation(self, observation: Any) -> np.ndarray:
    # A copy: some environments return their own buffer and write to it later.
    observation = np.array(observation, np.float32)
    check_shape(self._spec, observation.shape)
    if not np.isfinite(observation).all():
      raise fault(self._spec.name, self._t, 'observation', observation)
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


def check_shape(environment_spec: Spec, shape: tuple[int, ...]) -> None:
  """Raises EnvironmentFault unless an observation has the declared shape."""
  if shape != environment_spec.observation_shape:
    raise EnvironmentFault(
      f'{environment_spec.name} returned an observation of shape {shape}, but '
      f'its observation space has shape {environment_spec.observation_shape}. '
      f'The environment must keep to the space it declares.'
    )


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
  copy = '' if index is None else f' in environment {index} of its batch'
  return EnvironmentFault(
    f'{name} returned {field} {values[tuple(bad)]}{where} at step {t} of an '
    f'episode{copy}, but needs finite float32 values: one NaN in replay would '
    f'reach every parameter. Fix the environment, or wrap it so that it ends '
    f'the episode instead.'
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


def build(name: str, render_mode: str | None = None) -> gymnasium.Env:
  """Builds the bare gymnasium environment, time limit included.

  Raises:
    EnvironmentRefused: unknown id, or it cannot be built here.
  """
  _check_registered(name)
  options: dict[str, Any] = (
    {} if render_mode is None else {'render_mode': render_mode}
  )
  try:
    # The checker tests each step again and doubles the cost of a small one;
    # what matters of it (shape, finiteness) is checked here.
    return gymnasium.make(name, disable_env_checker=True, **options)
  except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
    raise EnvironmentRefused(
      f'{name} needs a package that is missing: {error}. Install '
      f'{_extra(name)} in the environment that runs this program.'
    ) from error
  except Exception as error:
    raise EnvironmentRefused(
      f'{name} is registered but could not be built: '
      f'{type(error).__name__}: {error}. See whether '
      f'gymnasium.make({name!r}) works by itself.'
    ) from error


def _check_registered(name: str) -> None:
  """Refuses a name that gymnasium does not know, with the nearest ones."""
  if not isinstance(name, str) or not name:
    raise EnvironmentRefused(
      f'{name!r} is not an environment name; give a gymnasium id such as '
      f"'CartPole-v1'."
    )
  module, _, identifier = name.rpartition(':')
  # Importing ale_py registers the Atari environments.
  if not module and identifier.startswith('ALE/'):
    module = 'ale_py'
  if module:
    try:
      importlib.import_module(module)
    except ImportError as error:
      raise EnvironmentRefused(
        f'{name} needs the module {module!r}, which does not import: {error}. '
        f'Install the package that registers it.'
      ) from error
  if identifier in gymnasium.registry:
    return
  by_lower = {known.lower(): known for known in gymnasium.registry}
  near = difflib.get_close_matches(identifier.lower(), by_lower, n=3)
  if near:
    advice = f'Nearest ids: {", ".join(by_lower[key] for key in near)}.'
  else:
    advice = 'gymnasium.pprint_registry() lists the known ones.'
  raise EnvironmentRefused(
    f'Unknown environment {name!r}: gymnasium has no such id. {advice}'
  )


def _extra(name: str) -> str:
  """What to install for an environment of gymnasium, by its module."""
  entry_point = str(gymnasium.registry[name.rpartition(':')[2]].entry_point)
  for family in ('box2d', 'mujoco', 'toy_text', 'classic_control'):
    if f'.{family}' in entry_point:
      return f'gymnasium[{family}]'
  return 'the package named above'


def _spec_of(name: str, environment: gymnasium.Env) -> Spec:
  observation_space: Any = environment.observation_space
  if not isinstance(observation_space, gymnasium.spaces.Box):
    raise EnvironmentRefused(
      f'{name} has observations of type {type(observation_space).__name__}, '
      f'but a Box (one array of numbers) is needed. Register a version with a '
      f'wrapper such as gymnasium.wrappers.FlattenObservation.'
    )
  registered = environment.spec
  assert registered is not None, name
  result = Spec(
    name=name,
    observation_shape=tuple(observation_space.shape),
    num_actions=None,
    max_episode_steps=registered.max_episode_steps,
    reward_threshold=registered.reward_threshold,
  )
  space: Any = environment.action_space
  if isinstance(space, gymnasium.spaces.Discrete):
    return dataclasses.replace(result, num_actions=int(space.n))
  if not isinstance(space, gymnasium.spaces.Box):
    raise EnvironmentRefused(
      f'{name} takes actions of type {type(space).__name__}, but Discrete or '
      f'Box actions are needed. Register a version with a wrapper that '
      f'flattens them.'
    )
  if space.dtype is None or space.dtype.kind != 'f':
    raise EnvironmentRefused(
      f'{name} takes Box actions of dtype {space.dtype}, but floats are '
      f'needed. Register a version with Discrete actions instead.'
    )
  if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
    raise EnvironmentRefused(
      f'{name} takes unbounded actions (low={space.low}, high={space.high}), '
      f'but [-1, 1] can only be mapped to finite bounds. Wrap it in '
      f'gymnasium.wrappers.RescaleAction or ClipAction.'
    )
  return dataclasses.replace(
    result,
    action_shape=tuple(space.shape),
    action_minimum=tuple(map(float, space.low.ravel())),
    action_maximum=tuple(map(float, space.high.ravel())),
  )
