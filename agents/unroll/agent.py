"""What agents on unrolls share that is not their loss.

A network of policy and value, a head that says what its outputs mean, what
actors write, and how they act.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

from agents import base
from agents import parameters
from agents.networks import policy_heads
from agents.unroll import acting as unroll_acting
from agents.unroll import network as unroll_network
from agents.unroll import unrolls
from environment_loops import environments
from replay import blocks


def make_head(
  spec: environments.Spec,
  sigma_min: float = 1e-3,
  sigma_max: float | None = 2.0,
  tanh_mean: bool = False,
) -> policy_heads.Head:
  """A softmax for discrete actions, else a Gaussian."""
  if spec.num_actions is not None:
    return policy_heads.Softmax(spec.num_actions)
  return policy_heads.Gaussian(
    math.prod(spec.action_shape), sigma_min, sigma_max, tanh_mean
  )


class UnrollActorCritic(base.Agent):
  """An agent that learns policy and value from unrolls of its policy."""

  n_step = 1  # transitions are not what it learns from
  unroll_length: int

  def __init__(
    self,
    spec: environments.Spec,
    head: policy_heads.Head,
    network: unroll_network.UnrollNetwork,
    learning_rate: float,
  ):
    """Makes what acts.

    Args:
      spec: of the environment.
      head: distribution over its actions.
      network: with as many outputs for the policy as the head needs.
      learning_rate: of a member, per update.
    """
    self.spec = spec
    self.head = head
    self.network = network
    self.learning_rate = learning_rate
    # There is no target network; the learner's copy is simply never renewed.
    self.target_update = base.TargetUpdate(2**62)
    self.layout = parameters.Layout(network.shapes(), network.groups())
    self._policy = unroll_acting.Policy(
      self.layout, network, head, tuple(spec.action_shape)
    )

  def block_layout(self, num_envs: int) -> blocks.BlockLayout:
    spec = self.spec
    return blocks.BlockLayout(
      self.unroll_length,
      num_envs,
      spec.observation_shape,
      spec.action_shape,
      spec.discrete,
      spec.observation_dtype,
      core_size=self.network.core_size,
      max_episode_steps=spec.max_episode_steps,
    )

  def feed(
    self, num_envs: int, batch_size: int | None = None, seed: int = 0
  ) -> unrolls.BlockFeed:
    """How blocks of `num_envs` environments become batches."""
    del seed
    return unrolls.Unrolls(batch_size or self.batch_size, num_envs)

  def initial(self, seed: int) -> np.ndarray:
    return self.layout.pack(self.network.initial(np.random.default_rng(seed)))

  def actions(self, batch: blocks.Block) -> tf.Tensor:
    """Of blocks [b, ...]: [T, B], or flat [T, B, A] if continuous."""
    actions = unroll_network.time_major(batch.action)
    if self.spec.discrete:
      return actions
    return tf.reshape(actions, (*actions.shape[:2], -1))

  def statistics(
    self,
    variables: Sequence[tf.Tensor],
    observations: tf.Tensor,
    mask: tf.Tensor,
  ) -> dict[str, tf.Tensor]:
    """The normalizer's statistics after one more batch; {} without one.

    Args:
      variables: of the member, in layout order.
      observations: raw, [T, B, I].
      mask: 0 where there is no experience, [T, B].
    """
    normalizer = self.network.normalizer
    if normalizer is None:
      return {}
    return normalizer.updated(
      self.network.split(variables)['normalizer'],
      tf.reshape(observations, (-1, normalizer.size)),
      tf.reshape(mask, (-1,)),
    )

  def exploration(self, actor_steps: int) -> float:
    """0: the policy is random by itself, and nothing is added."""
    del actor_steps
    return 0.0

  def actor(
    self, info: base.ActorInfo, num_envs: int
  ) -> unroll_acting.SamplingActor:
    """An `unrolls.UnrollActor`; all ranks act alike."""
    del info
    return unroll_acting.SamplingActor(self._policy, num_envs)

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    if self.network.core_size:
      raise ValueError(
        'This policy remembers (lstm_size or stack), and act() has nowhere to '
        'keep what. Let actor() act, one for each member.'
      )
    return np.stack(
      [
        unroll_acting.SamplingActor(self._policy, len(x)).act(
          one, x, actor_steps, rng
        )
        for one, x in zip(theta, observation)
      ]
    )

  def greedy(self, theta: np.ndarray) -> unroll_acting.GreedyPolicy:
    return unroll_acting.GreedyPolicy(self._policy, theta)

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    found = self.network.operations(self.layout.unpack(theta))
    return found + self.head.operations()

  def greedy_each(self, theta: np.ndarray) -> base.Members:
    if self.network.images or self.network.lstm is not None:
      return super().greedy_each(theta)
    return unroll_acting.GreedyMembers(self._policy, theta)
