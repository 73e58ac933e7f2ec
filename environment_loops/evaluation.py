"""Episodes played to measure a policy: undiscounted, unscaled returns."""

from collections.abc import Callable
from typing import NamedTuple

import dm_env
import numpy as np

from environment_loops import vector

# Observations [N, ...] to actions [N] or [N, ...].
Policy = Callable[[np.ndarray], np.ndarray]


class EpisodeResult(NamedTuple):
  """One episode: its return in the environment's units, its length in steps."""

  episode_return: float
  length: int


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


def evaluate(
  policy: Policy,
  environment: dm_env.Environment,
  num_episodes: int,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
) -> list[EpisodeResult]:
  """Plays `num_episodes` episodes in turn.

  Args:
    policy: maps observations [1, ...] to actions [1] or [1, ...].
    environment: a dm_env environment.
    num_episodes: how many, from 1 up.
    max_steps: cut each episode after so many environment steps.
    should_stop: asked before each step.

  Returns:
    One result per whole episode; fewer than `num_episodes` only if stopped.
  """
  _check_positive('num_episodes', num_episodes)
  results = []
  for _ in range(num_episodes):
    result = run_episode(policy, environment, max_steps, should_stop)
    if result is None:
      break
    results.append(result)
  return results


def evaluate_vector(
  policy: Policy,
  name: str,
  num_episodes: int,
  seed: int,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
) -> np.ndarray | None:
  """Plays `num_episodes` episodes side by side, in an environment each.

  Args:
    policy: maps observations [num_episodes, ...] to as many actions.
    name: gymnasium id, with options for Atari (`atari.py`).
    num_episodes: how many, from 1 up.
    seed: the same seed gives the same first observations.
    max_steps: cut each episode after so many environment steps.
    should_stop: asked before each step.

  Returns:
    Returns, float64 [num_episodes], or None if stopped before the last end.

  Raises:
    EnvironmentRefused: the environment cannot be used.
  """
  _check_positive('num_episodes', num_episodes)
  # A broken simulation ends one episode early, not the evaluation.
  environment = vector.make_vector(
    name, num_episodes, seed, on_fault=vector.DROP
  )
  try:
    return first_episodes(policy, environment, max_steps, should_stop)
  finally:
    environment.close()


def first_episodes(
  policy: Policy,
  environment: vector.VectorEnvironment,
  max_steps: int | None = None,
  should_stop: Callable[[], bool] | None = None,
) -> np.ndarray | None:
  """Returns of the first episode of each of K environments.

  Only the first: taking the first N episodes to end would count short episodes
  more often than long ones.

  Args:
    policy: maps observations [K, ...] to actions [K] or [K, ...].
    environment: K environments; they are reset first.
    max_steps: cut each episode after so many environment steps.
    should_stop: asked before each step.

  Returns:
    Returns, float64 [K], or None if stopped before the last end.
  """
  _check_positive('max_steps', max_steps)
  observation = environment.reset()
  returns = np.zeros(environment.num, np.float64)
  running = np.ones(environment.num, np.bool_)
  length = 0
  while running.any() and (max_steps is None or length < max_steps):
    if should_stop is not None and should_stop():
      return None
    step = environment.step(np.asarray(policy(observation)))
    returns[running] += step.reward[running]
    running &= ~step.last
    observation = step.next_observation
    length += 1
  return returns


def _check_positive(name: str, value: int | None) -> None:
  if value is not None and value < 1:
    raise ValueError(f'{name}={value} is too small; give an integer from 1 up.')
