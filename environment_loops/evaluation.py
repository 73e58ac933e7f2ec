"""Plays episodes to measure a policy: undiscounted, unscaled returns."""

from collections.abc import Callable
import contextlib
import logging
import math
from typing import Any, NamedTuple

import dm_env
import numpy as np

from murmuration.environment_loops import atari
from murmuration.environment_loops import environments
from murmuration.environment_loops import faults
from murmuration.environment_loops import vector

_logger = logging.getLogger(__name__)
# Successive broken episodes of one environment that end an evaluation.
_MAX_BROKEN = 10

# Maps observations [N, ...] to actions [N] or [N, ...]. A policy that remembers
# its episodes also has `reset()`, called before new ones begin, and
# `ended(last)`, bool [N], called when an episode broke and another replaces it.
Policy = Callable[[np.ndarray], np.ndarray]


class VectorResult(NamedTuple):
  """Whole episodes played side by side.

  Attributes:
    returns: in the environment's units, float64 [K]; [0] if it was given up.
    broken: episodes that broke and were replaced by others, because part of an
      episode says nothing about its return.
  """

  returns: np.ndarray
  broken: int

  @property
  def mean(self) -> float:
    """Mean return; NaN if the evaluation was given up."""
    return float(np.mean(self.returns)) if len(self.returns) else math.nan

  @property
  def std(self) -> float:
    """Standard deviation of the returns; NaN if the evaluation was given up."""
    return float(np.std(self.returns)) if len(self.returns) else math.nan


def run_episode(
  policy: Policy,
  environment: dm_env.Environment,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
) -> float | None:
  """Return of one episode, after a reset; None if stopped before its end.

  Args:
    policy: maps observations [1, ...] to actions [1] or [1, ...].
    environment: a dm_env environment.
    max_steps: environment steps after which the episode is cut.
    should_stop: called before each step; true gives up the episode, because
      part of one says nothing about its return.
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
  return episode_return


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
      whole game, even if training ends one with each life.
    num_episodes: at least 1.
    seed: the same seed gives the same first observations.
    max_steps: environment steps after which each episode is cut.
    should_stop: called before each step.
    on_fault: what to do if episode after episode breaks: `vector.RAISE`, or
      `vector.DROP` the evaluation.
    epsilon: probability of a random action; discrete actions only.
    building: context that is entered while the environments are made, and again
      for their first reset.

  Returns:
    Returns of whole episodes, or None if stopped before the last end.

  Raises:
    EnvironmentRefused: the environment cannot be used.
    EnvironmentFault: too many episodes break, see `on_fault`.
  """
  _check_positive('num_episodes', num_episodes)
  # A broken simulation costs its episode, not the evaluation.
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
  """Plays the first whole episode of each of K environments.

  Taking the first N episodes to end would count short episodes more often than
  long ones. A broken episode is replaced by the next of the same environment.
  The environments are reset first, within the context `resetting`. For the
  other arguments, the result and the errors see `evaluate_vector`.
  """
  _check_positive('max_steps', max_steps)
  _forget(policy)
  with resetting or contextlib.nullcontext():
    observation = environment.reset()
  returns = np.zeros(environment.num, np.float64)
  running = np.ones(environment.num, np.bool_)
  lengths = np.zeros(environment.num, np.int64)
  broken = np.zeros(environment.num, np.int64)  # successive ones
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
        return _give_up(environment, running, broken, on_fault)
      if hasattr(policy, 'ended'):
        policy.ended(step.last)
    for member in np.flatnonzero(running & ends).tolist():
      environment.rest(member)
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
  environment: vector.VectorEnvironment,
  running: np.ndarray,
  broken: np.ndarray,
  on_fault: str,
) -> VectorResult:
  """Ends an evaluation whose episodes keep breaking."""
  # Without its advice, which is for who trains.
  fault = environment.last_fault.partition('. ')[0]
  message = (
    f'{environment.spec.name} broke {broken.max()} episodes in a row while a '
    f'policy was evaluated: {broken.sum()} in all, and only '
    f'{np.count_nonzero(~running)} of {len(running)} were whole, so that the '
    f'policy has no return. The last: {fault}. Mend the environment, or keep '
    f'the policy from what breaks it.'
  )
  if on_fault == vector.RAISE:
    raise faults.EnvironmentFault(message)
  _logger.warning(message)
  return VectorResult(np.zeros(0), int(broken.sum()))


class Randomized:
  """A policy that takes a uniformly random action with probability epsilon."""

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
    # For example `ended` of a policy that remembers its episodes.
    return getattr(self._policy, name)


def _forget(policy: Policy) -> None:
  if hasattr(policy, 'reset'):
    policy.reset()


def _check_positive(name: str, value: int | None) -> None:
  if value is not None and value < 1:
    raise ValueError(f'{name}={value} is too small; give an integer from 1 up.')
