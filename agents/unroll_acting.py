"""How an unroll agent acts: by sampling, or greedily; NumPy for small networks.

What is remembered belongs to environments, so each actor and each greedy policy
has a memory of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from agents import parameters
from agents import policy_heads
from agents import unroll_network


@dataclasses.dataclass(frozen=True)
class Policy:
  """What acts, without parameters and without memory."""

  layout: parameters.Layout
  network: unroll_network.UnrollNetwork
  head: policy_heads.Head
  action_shape: tuple[int, ...]


class _Memory:
  """The policy's outputs for K environments, and what it remembers of them."""

  def __init__(self, policy: Policy, num_envs: int):
    self._network = policy.network
    self._layout = policy.layout
    self._theta: np.ndarray | None = None
    self._parts: dict[str, Any] = {}
    self._next = np.zeros((num_envs, policy.network.core_size), np.float32)
    self._fresh = np.ones(num_envs, np.bool_)
    self.core = self._next

  def step(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Outputs [K, policy_size] for `theta [D]`, which is not changed later."""
    if theta is not self._theta:
      self._theta = theta
      self._parts = self._network.prepare(self._layout.unpack(theta[None]))
    self.core = self._next
    outputs, self._next = self._network.step(
      self._parts, observation, self.core, self._fresh
    )
    if self._fresh.any():
      self._fresh = np.zeros_like(self._fresh)
    return outputs

  def ended(self, last: np.ndarray) -> None:
    self._fresh = np.array(last, np.bool_)


class SamplingActor:
  """An `unrolls.UnrollActor` that draws its actions from the policy."""

  def __init__(self, policy: Policy, num_envs: int):
    self._memory = _Memory(policy, num_envs)
    self._head = policy.head
    self._shape = (num_envs, *policy.action_shape)
    self.behaviour = np.zeros((num_envs, 1), np.float32)

  @property
  def core(self) -> np.ndarray:
    """State with which the last actions were chosen, float32 [K, S]."""
    return self._memory.core

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    del actor_steps
    outputs = self._memory.step(theta, observation)
    actions, log_mu = self._head.sample(outputs, rng)
    self.behaviour = log_mu[:, None]
    return actions.reshape(self._shape)

  def ended(self, last: np.ndarray) -> None:
    self._memory.ended(last)

  def priorities(self, theta, packed):
    del theta, packed
    return None


class GreedyPolicy:
  """The likeliest action; remembers what the policy remembers.

  Made for one run of episodes that start together. `reset` before others;
  `ended` where episodes follow one another.
  """

  def __init__(self, policy: Policy, theta: np.ndarray):
    self._policy = policy
    self._theta = np.array(theta, np.float32)
    self._memory: _Memory | None = None

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    if self._memory is None:
      self._memory = _Memory(self._policy, len(observation))
    outputs = self._memory.step(self._theta, observation)
    actions = self._policy.head.mode(outputs)
    return actions.reshape(len(observation), *self._policy.action_shape)

  def reset(self) -> None:
    """All episodes begin anew, however many there are."""
    self._memory = None

  def ended(self, last: np.ndarray) -> None:
    """Where episodes have ended, bool [K]."""
    if self._memory is not None:
      self._memory.ended(last)
