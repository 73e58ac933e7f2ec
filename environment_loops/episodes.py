"""Plays given episodes, each from its own seed, in K environments at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from murmuration.environment_loops import stepping


class Policy(Protocol):
  """A policy that is told which episode each environment plays."""

  def begin(self, member: int, episode: int) -> None:
    """Called when environment `member` begins this episode."""

  def end(self, member: int) -> None:
    """Called when environment `member` is done and its actions are ignored."""

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    """Maps observations [K, ...] to actions [K, ...]."""


class Result(NamedTuple):
  """Results of E episodes.

  Attributes:
    returns: undiscounted, in the environment's units, float64 [E]; NaN where
      the environment broke.
    lengths: environment steps, int64 [E].
  """

  returns: np.ndarray
  lengths: np.ndarray


def play(
  policy: Policy,
  environment: stepping.VectorEnvironment,
  seeds: Sequence[int],
  should_stop: Callable[[], bool] = lambda: False,
) -> Result | None:
  """Plays E whole episodes in K <= E environments, however long they are.

  Environment k plays episodes k, k + K, k + 2 K, ..., seeded with `seeds` [E]:
  an episode depends only on its number and K. Returns None if `should_stop`,
  called before each step, is true before the last end.

  Raises:
    ValueError: more environments than episodes.
  """
  num, total = environment.num, len(seeds)
  if num > total:
    raise ValueError(f'{num} environments for {total} episodes are too many.')
  result = Result(np.zeros(total), np.zeros(total, np.int64))
  playing = np.arange(num)  # the episode of each environment
  running = np.ones(num, bool)

  def follow(member: int) -> None:
    # The next episode begins by itself, in the step that ends this one.
    following = playing[member] + num
    if following < total:
      environment.reseed(member, seeds[following])

  for member in range(num):
    environment.reseed(member, seeds[member])
  observation = environment.reset()
  for member in range(num):
    policy.begin(member, member)
    follow(member)
  returns = np.zeros(num)  # of the current episodes
  lengths = np.zeros(num, np.int64)
  while running.any():
    if should_stop():
      return None
    step = environment.step(policy(observation))
    returns += step.reward
    lengths += 1
    observation = step.next_observation
    if not step.last.any():
      continue
    for member in np.flatnonzero(step.last & running):
      episode = playing[member]
      result.returns[episode] = returns[member]
      result.lengths[episode] = lengths[member]
      if step.valid is not None and not step.valid[member]:
        result.returns[episode] = np.nan
      playing[member] += num
      if playing[member] < total:
        policy.begin(member, playing[member])
        follow(member)
      else:
        policy.end(member)
        environment.rest(member)
        running[member] = False
    returns[step.last], lengths[step.last] = 0.0, 0
  return result
