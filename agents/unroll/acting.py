"""How an unroll agent acts: by sampling, or greedily; NumPy for small networks.

Recurrent state belongs to environments, so each actor and each greedy policy
keeps its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from murmuration.agents import base
from murmuration.agents import parameters

# An `agent.UnrollActorCritic`.
Agent = Any


class _Memory:
  """The policy's outputs for K environments, and what it remembers of them."""

  def __init__(self, agent: Agent, num_envs: int):
    self._network = agent.network
    self._prepared = parameters.Prepared(agent.layout, agent.network.prepare)
    self._next = np.zeros((num_envs, agent.network.core_size), np.float32)
    self._fresh = np.ones(num_envs, np.bool_)
    self.core = self._next

  def step(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Outputs [K, policy_size] for `theta [D]`, which is not changed later."""
    outputs, core, following = self.forward(theta, *self.inputs(observation))
    self.take(core, following)
    return outputs

  def inputs(self, observation: np.ndarray) -> tuple[np.ndarray, ...]:
    """What `forward` takes for the next step, [K, ...] each."""
    return observation, self._next, self._fresh

  def forward(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    core: np.ndarray,
    fresh: np.ndarray,
  ) -> tuple[np.ndarray, ...]:
    """Outputs, cores they were made with, cores that follow, of any rows."""
    outputs, following = self._network.step(
      self._prepared(theta), observation, core, fresh
    )
    return outputs, core, following

  def take(self, core: np.ndarray, following: np.ndarray) -> None:
    """Keeps what `forward` made of this memory's own rows."""
    self.core, self._next = core, following
    if np.count_nonzero(self._fresh):
      self._fresh = np.zeros_like(self._fresh)

  def ended(self, last: np.ndarray) -> None:
    self._fresh = np.array(last, np.bool_)


class SamplingActor(base.Actor):
  """An `unrolls.UnrollActor` that draws its actions from the policy."""

  def __init__(self, agent: Agent, num_envs: int):
    self._memory = _Memory(agent, num_envs)
    self._head = agent.head
    self._shape = (num_envs, *agent.spec.action_shape)
    self.behaviour = np.zeros((num_envs, 1), np.float32)

  @property
  def core(self) -> np.ndarray:
    """State with which the last actions were chosen, float32 [K, S]."""
    return self._memory.core

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    outputs = self.forward(theta, *self.inputs(observation, actor_steps))
    return self.take(*self.choose(outputs, rng))

  # The parts of `act`, for many actors at once (batched_acting.py).

  def inputs(self, observation, actor_steps) -> tuple[np.ndarray, ...]:
    return self._memory.inputs(observation)

  def forward(self, theta, *inputs) -> tuple[np.ndarray, ...]:
    return self._memory.forward(theta, *inputs)

  def choose(self, outputs, rng) -> tuple[np.ndarray, ...]:
    policy, core, following = outputs
    actions, log_mu = self._head.sample(policy, rng)
    return actions, log_mu[:, None], core, following

  def take(self, actions, behaviour, core, following) -> np.ndarray:
    self._memory.take(core, following)
    self.behaviour = behaviour
    return actions.reshape(self._shape)

  def ended(self, last: np.ndarray) -> None:
    self._memory.ended(last)


class GreedyPolicy:
  """The likeliest action; remembers what the policy remembers.

  Made for one run of episodes that start together. `reset` before others;
  `ended` where episodes follow one another.
  """

  def __init__(self, agent: Agent, theta: np.ndarray):
    self._agent = agent
    self._theta = np.array(theta, np.float32)
    self._memory: _Memory | None = None

  @property
  def remembers(self) -> bool:
    return bool(self._agent.network.core_size)

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    if self._memory is None:
      self._memory = _Memory(self._agent, len(observation))
    remembered = len(self._memory.core)
    if self.remembers and len(observation) != remembered:
      raise ValueError(
        f'This policy remembers {remembered} episodes, and got '
        f'{len(observation)} observations. Let it `reset` where others begin.'
      )
    outputs = self._memory.step(self._theta, observation)
    actions = self._agent.head.mode(outputs)
    return actions.reshape(len(observation), *self._agent.spec.action_shape)

  def reset(self) -> None:
    """All episodes begin anew, however many there are."""
    self._memory = None

  def ended(self, last: np.ndarray) -> None:
    """Where episodes have ended, bool [K]."""
    if self._memory is not None:
      self._memory.ended(last)


class GreedyMembers:
  """`base.Members` of MLPs, stacked observations included: one pass for all."""

  def __init__(self, agent: Agent, theta: np.ndarray):
    self._agent = agent
    self._take(np.array(theta, np.float32))
    self._core = np.zeros((len(theta), agent.network.core_size), np.float32)
    self._fresh = np.ones(len(theta), np.bool_)

  def _take(self, theta: np.ndarray) -> None:
    self._theta, agent = theta, self._agent
    # Views, which follow it.
    self._parts = agent.network.prepare(agent.layout.unpack(theta))

  def begin(self, member: int, theta: np.ndarray) -> None:
    self._theta[member] = theta
    self._fresh[member] = True

  def keep(self, members: np.ndarray) -> None:
    self._take(self._theta[members])
    self._core, self._fresh = self._core[members], self._fresh[members]

  def __call__(self, observation: np.ndarray) -> np.ndarray:
    outputs, self._core = self._agent.network.step(
      self._parts, observation, self._core, self._fresh, len(self._theta)
    )
    self._fresh[:] = False
    actions = self._agent.head.mode(outputs)
    return actions.reshape(len(observation), *self._agent.spec.action_shape)
