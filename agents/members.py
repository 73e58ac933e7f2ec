"""P members that act in one process, behind the interface of one actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from murmuration.agents import base


class Population:
  """Members with one environment each: one call of the agent acts for all."""

  def __init__(self, agent: base.Agent):
    self._agent = agent

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [P, ...] for `theta [P, D]` and `observation [P, ...]`."""
    return self._agent.act(theta, observation[:, None], actor_steps, rng)[:, 0]

  def ended(self, last: np.ndarray) -> None:
    self._agent.ended(last[:, None])


class Ranked:
  """Members with K environments and an actor each."""

  def __init__(
    self, agent: base.Agent, infos: Sequence[base.ActorInfo], num_envs: int
  ):
    # Each member explores as the only actor of its agent.
    self.actors: list[Any] = [
      agent.actor(base.ActorInfo(0, 1, info.seed), num_envs) for info in infos
    ]
    self._theta: np.ndarray | None = None
    self.rows: list[np.ndarray] = []

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [P * K, ...] for `theta [P, D]`, `observation [P * K, ...]`."""
    if theta is not self._theta:
      # Actors cache what they prepare of a row by its identity.
      self._theta, self.rows = theta, list(theta)
    if len(self.actors) == 1:
      return self.actors[0].act(self.rows[0], observation, actor_steps, rng)
    own = np.split(observation, len(self.actors))
    return np.concatenate(
      [
        actor.act(row, seen, actor_steps, rng)
        for actor, row, seen in zip(self.actors, self.rows, own)
      ]
    )

  def priorities(self, member: int, packed: np.ndarray) -> np.ndarray | None:
    """First priorities [M] of packed transitions [M, W] of one member."""
    return self.actors[member].priorities(self.rows[member], packed)

  def ended(self, last: np.ndarray) -> None:
    if len(self.actors) == 1:
      return self.actors[0].ended(last)
    for actor, own in zip(self.actors, np.split(last, len(self.actors))):
      actor.ended(own)


class Unrolling(Ranked):
  """The same for unrolls, with the values stored beside each step."""

  @property
  def behaviour(self) -> np.ndarray:
    """Policy outputs for the last actions, float32 [P * K, A']."""
    return _joined([actor.behaviour for actor in self.actors])

  @property
  def core(self) -> np.ndarray:
    """Recurrent states before the last actions, float32 [P * K, S]."""
    return _joined([actor.core for actor in self.actors])


def _joined(parts: list[np.ndarray]) -> np.ndarray:
  return parts[0] if len(parts) == 1 else np.concatenate(parts)
