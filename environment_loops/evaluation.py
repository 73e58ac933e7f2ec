"""Episodes played to measure a policy: undiscounted, unscaled returns."""

from collections.abc import Callable
import contextlib
import logging
import math
from typing import Any, NamedTuple

import dm_env
import numpy as np

from environment_loops import atari
from environment_loops import environments
from environment_loops import faults
from environment_loops import vector

_logger = logging.getLogger(__name__)
# Broken episodes in a row, in one environment, that give up an evaluation.
_MAX_BROKEN = 10

# Observations [N, ...] to actions [N] or [N, ...]. One that remembers the
# episodes it is in has `reset()`, before others begin, and `ended(last)`.
Policy = Callable[[np.ndarray], np.ndarray]


class EpisodeResult(NamedTuple):
  """One episode: its return in the environment's units, its length in steps."""

  episode_return: float
  length: int


class VectorResult(NamedTuple):
  """Whole episodes played side by side.

  Attributes:
    returns: in the environment's units, float64 [K]; [0] if it was given up.
    broken: episodes that broke. Part of an episode says nothing of its return,
      so that others were played instead.
  """

  returns: np.ndarray
  broken: int

  @property
  def mean(self) -> float:
    """Mean return; NaN if it was given up."""
    return float(np.mean(self.returns)) if len(self.returns) else math.nan

  @property
  def std(self) -> float:
    """Standard deviation of the returns; NaN if it was given up."""
    return float(np.std(self.returns)) if len(self.returns) else math.nan


def run_episode(
  policy: Policy,
  environment: dm_env.Environment,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
) -> EpisodeResult | None:
  """Plays one episode.

  Args:
    policy: maps observations [1, ...] to actions [1] or [1, ...].
    environment: a dm_env environment; it is reset first.
    max_steps: cut the episode after so many environment steps.
    should_stop: asked before each step; true gives up the episode.

  Returns:
    The result, or None if stopped before the end: part of an episode says
    nothing about its return.
  """
  _check_positive('max_steps', max_steps)
  _forget(policy)
  timestep = environment.reset()
  episode_return = 0.0
  length = 0
  while not timestep.last() and (max_steps is None or length < max_steps):
    if should_stop is not None and should_stop():
      return None
    action = np.asarray(policy(np.asarray(timestep.observation)[None]))[0]
    timestep = environment.step(action)
    episode_return += float(timestep.reward)
    length += 1
  return EpisodeResult(episode_return, length)


def evaluate_vector(
  policy: Policy,
  name: str,
  num_episodes: int,
  seed: int,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
  on_fault: str = vector.RAISE,
  epsilon: float = 0.0,
  building: contextlib.AbstractContextManager[Any] | None = None,
) -> VectorResult | None:
  """Plays `num_episodes` episodes side by side, in an environment each.

  Args:
    policy: maps observations [num_episodes, ...] to as many actions.
    name: gymnasium id, with options for Atari (`atari.py`). An episode is a
      whole game, also where training ends one with each life.
    num_episodes: how many, from 1 up.
    seed: the same seed gives the same first observations.
    max_steps: cut each episode after so many environment steps.
    should_stop: asked before each step.
    on_fault: what becomes of an evaluation in which episode after episode
      breaks: `vector.RAISE`, or `vector.DROP`, which gives it up.
    epsilon: chance of a random action instead of the policy's; discrete
      actions only.
    building: is open while the environments are made, and again while they are
      reset for the first time.

  Returns:
    Returns of whole episodes, or None if stopped before the last end.

  Raises:
    EnvironmentRefused: the environment cannot be used.
    EnvironmentFault: hardly anything but broken episodes, see `on_fault`.
  """
  _check_positive('num_episodes', num_episodes)
  # One broken simulation costs its episode, not the evaluation.
  with building or contextlib.nullcontext():
    environment = vector.make_vector(
      atari.whole_games(name), num_episodes, seed, on_fault=vector.DROP
    )
  if epsilon:
    policy = Randomized(policy, environment.spec, epsilon, seed)
  try:
    return first_episodes(
      policy, environment, max_steps, should_stop, on_fault, building
    )
  finally:
    environment.close()


def first_episodes(
  policy: Policy,
  environment: vector.VectorEnvironment,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
  on_fault: str = vector.RAISE,
  resetting: contextlib.AbstractContextManager[Any] | None = None,
) -> VectorResult | None:
  """Returns of the first whole episode of each of K environments.

  Only the first: taking the first N episodes to end would count short episodes
  more often than long ones. Where one breaks, the next one of the same
  environment is played instead.

  Args:
    policy: maps observations [K, ...] to actions [K] or [K, ...].
    environment: K environments; they are reset first.
    max_steps: cut each episode after so many environment steps.
    should_stop: asked before each step.
    on_fault: as for `evaluate_vector`.
    resetting: is open during the first reset.

  Returns:
    Returns of whole episodes, or None if stopped before the last end.

  Raises:
    EnvironmentFault: hardly anything but broken episodes, see `on_fault`.
  """
  _check_positive('max_steps', max_steps)
  _forget(policy)
  with resetting or contextlib.nullcontext():
    observation = environment.reset()
  returns = np.zeros(environment.num, np.float64)
  running = np.ones(environment.num, np.bool_)
  lengths = np.zeros(environment.num, np.int64)
  broken = np.zeros(environment.num, np.int64)  # all of them in a row
  while running.any():
    if should_stop is not None and should_stop():
      return None
    step = environment.step(np.asarray(policy(observation)))
    returns[running] += step.reward[running]
    lengths += 1
    ends = step.last
    if max_steps is not None:
      ends = ends | (lengths >= max_steps)
    if step.valid is not None:
      again = running & ~step.valid
      returns[again], lengths[again] = 0.0, 0
      broken += again
      ends = ends & ~again
      if broken.max() >= _MAX_BROKEN:
        return _give_up(environment.spec.name, running, broken, on_fault)
      if hasattr(policy, 'ended'):
        policy.ended(step.last)
    running &= ~ends
    observation = step.next_observation
  if broken.any():
    _logger.warning(
      '%d episodes of %s broke while a policy was evaluated; others were '
      'played instead, as part of an episode says nothing of its return.',
      broken.sum(),
      environment.spec.name,
    )
  return VectorResult(returns, int(broken.sum()))


def _give_up(
  name: str, running: np.ndarray, broken: np.ndarray, on_fault: str
) -> VectorResult:
  """The end of an evaluation in which whole episodes do not come."""
  message = (
    f'{name} broke {broken.max()} episodes in a row while a policy was '
    f'evaluated: {broken.sum()} in all, and only '
    f'{np.count_nonzero(~running)} of {len(running)} were whole, so that the '
    f'policy has no return. The warnings above say what broke: mend the '
    f'environment, or keep the policy from what breaks it.'
  )
  if on_fault == vector.RAISE:
    raise faults.EnvironmentFault(message)
  _logger.warning(message)
  return VectorResult(np.zeros(0), int(broken.sum()))


class Randomized:
  """A policy some of whose actions are drawn uniformly."""

  def __init__(
    self, policy: Policy, spec: environments.Spec, epsilon: float, seed: int
  ):
    self._policy, self._epsilon = policy, epsilon
    self._num_actions = environments.require_discrete(spec, 'epsilon')
    self._rng = np.random.default_rng(seed)

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    actions = np.array(self._policy(observation))
    drawn = self._rng.random(len(actions)) < self._epsilon
    actions[drawn] = self._rng.integers(self._num_actions, size=drawn.sum())
    return actions

  def __getattr__(self, name: str) -> Any:
    # For example `ended`, of a policy that remembers its episodes.
    return getattr(self._policy, name)


def _forget(policy: Policy) -> None:
  """Nothing of earlier episodes, of which there may have been more or fewer."""
  if hasattr(policy, 'reset'):
    policy.reset()


def _check_positive(name: str, value: int | None) -> None:
  if value is not None and value < 1:
    raise ValueError(f'{name}={value} is too small; give an integer from 1 up.')
