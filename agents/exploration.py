"""How DQN explores: one epsilon that falls, or a ladder of constant ones.

Pure functions of NumPy: what acts needs no TensorFlow.
"""

from __future__ import annotations

import numpy as np


def linear(start: float, end: float, steps: int, done: int) -> float:
  """Epsilon after `done` of `steps` actor steps: a line, then constant."""
  share = min(1.0, done / max(steps, 1))
  return start + share * (end - start)


def ladder(count: int, epsilon: float, alpha: float) -> np.ndarray:
  """The epsilons of Ape-X, from the largest to the smallest.

  Horgan et al. 2018, section 4.1, constant in time:

    epsilon_i = epsilon^(1 + alpha * i / (count - 1)),  i = 0 .. count-1

  Args:
    count: how many there are, at least 1.
    epsilon: the first, in [0, 1].
    alpha: the last is epsilon^(1 + alpha).

  Returns:
    float64 [count]. Where count is 1, the formula has no value: epsilon.
  """
  return epsilon ** (1 + alpha * np.arange(count) / max(count - 1, 1))


def actor_epsilons(
  index: int, count: int, num_envs: int, epsilon: float, alpha: float
) -> np.ndarray:
  """One actor's share of the ladder over all environments of all actors.

  Environment k of actor i has rank k * count + i, so that every actor spans
  the ladder: none has only large or only small epsilons.

  Args:
    index: of the actor, 0 <= index < count.
    count: number of actors.
    num_envs: environments of each actor, K.
    epsilon: see `ladder`.
    alpha: see `ladder`.

  Returns:
    float64 [K].
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
  """A random action with probability epsilon, else the best.

  Args:
    q: action values [..., A]; among equals the lowest action is chosen.
    epsilon: broadcasts to [...].
    rng: source of the exploration.

  Returns:
    int32 [...].
  """
  actions = q.argmax(axis=-1).astype(np.int32)
  explore = rng.random(actions.shape) < epsilon
  if explore.any():
    random = rng.integers(0, q.shape[-1], actions.shape, dtype=np.int32)
    actions = np.where(explore, random, actions)
  return actions
