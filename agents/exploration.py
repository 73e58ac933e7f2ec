"""Exploration of DQN: one decreasing epsilon, or a ladder of constant ones.

Pure functions of NumPy, so that acting needs no TensorFlow.
"""

from __future__ import annotations

import numpy as np


def linear(start: float, end: float, steps: int, done: int) -> float:
  """Epsilon after `done` actor steps: linear over `steps`, then constant."""
  share = min(1.0, done / max(steps, 1))
  return start + share * (end - start)


def ladder(count: int, epsilon: float, alpha: float) -> np.ndarray:
  """The epsilons of Ape-X, from the largest to the smallest, float64 [count].

  Horgan et al. 2018, section 4.1, constant in time:

    epsilon_i = epsilon^(1 + alpha * i / (count - 1)),  i = 0 .. count-1

  For count 1, where the formula is undefined, it is epsilon.
  """
  return epsilon ** (1 + alpha * np.arange(count) / max(count - 1, 1))


def actor_epsilons(
  index: int, count: int, num_envs: int, epsilon: float, alpha: float
) -> np.ndarray:
  """One actor's share of the `ladder` of all environments, float64 [num_envs].

  Environment k of actor `index` has rank k * count + index, so the epsilons of
  every actor span the ladder.

  Raises:
    ValueError: `index` is not in 0 .. count-1.
  """
  if not 0 <= index < count:
    raise ValueError(
      f'Actor {index} of {count} has no place on the ladder: its index must '
      'be from 0 to the number of actors - 1. Check the ActorInfo.'
    )
  return ladder(count * num_envs, epsilon, alpha)[index::count]


def epsilon_greedy(
  q: np.ndarray, epsilon: float | np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Random actions with probability epsilon, else the best, int32 [...].

  Args:
    q: action values [..., A]; ties go to the lowest action.
    epsilon: broadcasts to [...].
    rng: source of the exploration.
  """
  actions = q.argmax(axis=-1).astype(np.int32)
  explore = rng.random(actions.shape) < epsilon
  if explore.any():
    random = rng.integers(0, q.shape[-1], actions.shape, dtype=np.int32)
    actions = np.where(explore, random, actions)
  return actions
