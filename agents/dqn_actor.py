"""What an actor of DQN does: it explores, and gives first priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents import base
from agents import exploration
from agents import parameters
from agents.losses import priorities
from agents.networks import mlp
from replay import packing

if TYPE_CHECKING:
  from agents import dqn


class Actor:
  """One actor: its epsilons, and the first priorities of what it stores."""

  def __init__(self, agent: dqn.DQN, info: base.ActorInfo, num_envs: int):
    self._agent = agent
    self._values = agent.values()
    self._ladder: np.ndarray | None = None
    if agent.config.exploration == 'ladder':
      self._ladder = agent.epsilons(info, num_envs, 0)
    self._transitions = packing.TransitionLayout(
      agent.spec.observation_shape,
      observation_dtype=agent.spec.observation_dtype,
    )

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    q, epsilon = self.forward(theta, *self.inputs(observation, actor_steps))
    return exploration.epsilon_greedy(q, epsilon, rng)

  # The parts of `act`, for many actors at once (batched_acting.py).

  def inputs(self, observation, actor_steps) -> tuple[np.ndarray, ...]:
    if self._ladder is not None:
      return observation, self._ladder
    epsilon = self._agent.exploration(actor_steps)
    return observation, np.full(len(observation), epsilon)

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

    specs/apex_dqn.md, section 2: the actor has one network for both roles, so
    that double Q-learning is the maximum. None if replay is not prioritized.
    """
    config = self._agent.config
    if not config.prioritized:
      return None
    transition = self._transitions.unpack(packed)
    count = len(packed)
    # One forward pass for both ends of all windows.
    q = self._values(
      theta, np.concatenate([transition.o_tm1, transition.o_t])[None]
    )[0]
    target = config.reward_scale * transition.r_t + (
      config.gamma * transition.d_t * q[count:].max(axis=-1)
    )
    return priorities.proportional(
      target - q[np.arange(count), transition.a_tm1]
    )

  def ended(self, last) -> None:
    """Nothing is kept of an episode."""


class Values:
  """Q in the form that acts; what that needs of theta is made once for each.

  A theta is known by its identity: one that is changed in place may pass for
  the old one.
  """

  def __init__(self, network: mlp.Network, layout: parameters.Layout):
    self._network = network
    self._layout = layout
    self._of: tuple[np.ndarray | None, Any] = (None, None)

  def __call__(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Q [P, K, A] of theta [P, D], or [D] for P = 1, and [P, K, ...]."""
    known, prepared = self._of
    if theta is not known:
      rows = theta.reshape(-1, self._layout.size)
      prepared = self._network.prepare(self._layout.unpack(rows))
      self._of = (theta, prepared)
    return self._network.forward(prepared, observation)
