"""The actor of DQN: epsilon-greedy actions and initial priorities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from murmuration.agents import base
from murmuration.agents import exploration
from murmuration.agents.losses import priorities
from murmuration.replay import packing


class Actor(base.Actor):
  """An epsilon-greedy actor of K environments."""

  def __init__(
    self,
    values: Callable[[np.ndarray, np.ndarray], np.ndarray],
    epsilons: Callable[[int], np.ndarray],
    prioritized: packing.TransitionLayout | None,
    gamma: float,
    reward_scale: float,
  ):
    """Makes an actor.

    Args:
      values: Q, as of `ValueAgent.values`.
      epsilons: maps actor steps to the chances of a random action, [K].
      prioritized: layout of what is stored; None: replay has no priorities.
      gamma: per environment step, for the initial priorities.
      reward_scale: factor on rewards, for the initial priorities.
    """
    self._values = values
    self._epsilons = epsilons
    self._prioritized = prioritized
    self._gamma = gamma
    self._reward_scale = reward_scale

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    q, epsilon = self.forward(theta, *self.inputs(observation, actor_steps))
    return exploration.epsilon_greedy(q, epsilon, rng)

  # The parts of `act`, for many actors at once (batched_acting.py).

  def inputs(self, observation, actor_steps) -> tuple[np.ndarray, ...]:
    return observation, self._epsilons(actor_steps)

  def forward(self, theta, observation, epsilon) -> tuple[np.ndarray, ...]:
    return self._values(theta, observation[None])[0], epsilon

  def choose(self, outputs, streams) -> tuple[np.ndarray, ...]:
    q, epsilon = outputs
    actions = np.empty(len(q), np.int32)
    for rows, rng in streams.parts:
      actions[rows] = exploration.epsilon_greedy(q[rows], epsilon[rows], rng)
    return (actions,)

  def take(self, actions) -> np.ndarray:
    return actions

  def priorities(self, theta, packed) -> np.ndarray | None:
    """p = |R + gamma D max_a Q(s', a) - Q(s, a)| + 1e-6, float32 [M].

    Horgan et al. 2018, section 3. An actor uses one network for both roles, so
    the double Q-learning target is the maximum. None without prioritization.
    """
    if self._prioritized is None:
      return None
    transition = self._prioritized.unpack(packed)
    count = len(packed)
    # One forward pass for both ends of all transitions.
    q = self._values(
      theta, np.concatenate([transition.o_tm1, transition.o_t])[None]
    )[0]
    target = self._reward_scale * transition.r_t + (
      self._gamma * transition.d_t * q[count:].max(axis=-1)
    )
    return priorities.proportional(
      target - q[np.arange(count), transition.a_tm1]
    )
