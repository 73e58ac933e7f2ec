"""What agents on unrolls share besides their loss.

A network of policy and value, a head that interprets the policy's outputs, the
layout of the blocks that actors write, and how they act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import parameters
from murmuration.agents import settings
from murmuration.agents.losses import policy_gradient
from murmuration.agents.networks import conv
from murmuration.agents.networks import policy_heads
from murmuration.agents.unroll import acting as unroll_acting
from murmuration.agents.unroll import network as unroll_network
from murmuration.agents.unroll import unrolls
from murmuration.environment_loops import environments
from murmuration.replay import blocks

# Below this mean standard deviation, in units of [-1, 1], a Gaussian policy
# hardly explores.
_SMALL_SIGMA = 0.02

_OF_GAUSSIANS = 'sigma_min', 'sigma_max', 'tanh_mean', 'free_sigma'


@dataclasses.dataclass(frozen=True)
class Config:
  """Network, policy and rewards of an agent on unrolls."""

  hidden_sizes: settings.Sizes = (64, 64)  # units of each hidden layer
  activation: Literal['relu', 'tanh'] = 'tanh'  # in hidden layers
  # Network: 'mlp' for vectors, the others for images (agents/networks/conv.py);
  # 'auto' chooses by the observations.
  network: conv.Name = 'auto'
  lstm_size: settings.Count = 0  # units of the LSTM; 0: no LSTM
  stack: settings.Whole = 1  # newest observations in the input
  normalize_observations: bool = False  # by a running mean and variance
  # Smallest standard deviation of a Gaussian policy, in units of [-1, 1].
  sigma_min: settings.NotNegative = 1e-3
  # Largest standard deviation, in the same units; None: no limit.
  sigma_max: settings.Positive | None = 2.0
  tanh_mean: bool = False  # whether a tanh keeps a Gaussian's mean in [-1, 1]
  # Whether standard deviations are variables of their own, the same for all
  # observations; PPO's paper: True.
  free_sigma: bool = False
  gamma: settings.Fraction = 0.99  # discount per environment step
  reward_scale: settings.Positive = 1.0  # factor on rewards, in the loss only
  # Bound c: rewards are clipped to [-c, c] for learning; None: no clipping.
  # IMPALA's paper: 1 (Atari).
  reward_clip: settings.Positive | None = None
  # Environment steps over which the learning rate falls linearly to 0; None: it
  # is constant.
  anneal_env_steps: settings.Whole | None = None

  def __post_init__(self):
    settings.check(self, 'agent')
    why = 'they are the bounds of the standard deviation.'
    settings.ordered(self, 'agent.sigma_min', 'agent.sigma_max', why)


class UnrollActorCritic(base.Agent):
  """An agent that learns policy and value from unrolls of its policy."""

  n_step = 1  # transitions are not what it learns from
  unroll_length: int

  def __init__(self, config: Any, spec: environments.Spec):
    """Makes the agent for one environment.

    `config` is a `Config` that also has unroll_length, batch_size,
    shared_torso, learning_rate and max_gradient_norm.

    Raises:
      ValueError: the settings do not fit together.
    """
    self.config = config
    self.spec = spec
    head: policy_heads.Head
    num_free = 0
    self.ignored = {}
    if self.images and not config.lstm_size:
      self.ignored |= conv.IGNORED
    if spec.num_actions is not None:
      head = policy_heads.Softmax(spec.num_actions)
      why = f'actions of {spec.name} are discrete'
      self.ignored |= dict.fromkeys(_OF_GAUSSIANS, why)
    else:
      head = policy_heads.Gaussian(
        math.prod(spec.action_shape),
        config.sigma_min,
        config.sigma_max,
        config.tanh_mean,
      )
      num_free = head.action_size if config.free_sigma else 0
      self.metrics = {**self.metrics, 'sigma': 'mean'}
    self.head = head
    self.network = network = unroll_network.UnrollNetwork(
      spec=spec,
      policy_size=head.size,
      hidden_sizes=tuple(config.hidden_sizes),
      activation=config.activation,
      network=config.network,
      shared=config.shared_torso,
      lstm_size=config.lstm_size,
      stack=config.stack,
      normalize=config.normalize_observations,
      num_free=num_free,
    )
    self.gamma = config.gamma
    self.reward_clip = config.reward_clip
    self.unroll_length = config.unroll_length
    self.batch_size = config.batch_size
    self.learning_rate = config.learning_rate
    self.max_gradient_norm = config.max_gradient_norm
    # Measured for IMPALA, CPU time per update without and with compilation:
    # 64x64, T=20, 530 and 265 us at B=8, 990 and 750 us at B=32; no difference
    # at 256x256, T=64, B=16; with an LSTM 7.8 and 21.7 ms. Compiled, a call of
    # PPO with 80 updates took a fifth of the time.
    self.compiled = not (network.images or config.lstm_size)
    # There is no target network: the learner's copy is never updated.
    self.target_update = base.TargetUpdate(2**62)
    self.layout = parameters.Layout(network.shapes(), network.groups())

  @functools.cached_property
  def unroll(self) -> Callable[..., unroll_network.Unrolled]:
    """`unroll(variables, blocks [b, ...], truncated)`: the network's."""
    return self.network.make_unroll()

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
    """Returns what turns blocks of `num_envs` environments into batches."""
    fixed = self.updates_per_call is not None
    return unrolls.Unrolls(batch_size or self.batch_size, num_envs, fixed)

  def initial(self, seed: int) -> np.ndarray:
    return self.layout.pack(self.network.initial(np.random.default_rng(seed)))

  def actions(self, batch: blocks.Block) -> tf.Tensor:
    """The actions of blocks [b, ...]: [T, B], or [T, B, A] if continuous."""
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
    """The normalizer's statistics after one more batch; {} if there is none.

    Observations are raw, [T, B, I]; `mask` [T, B] is 0 where there is no
    experience.
    """
    normalizer = self.network.normalizer
    if normalizer is None:
      return {}
    return normalizer.updated(
      self.network.split(variables)['normalizer'],
      tf.reshape(observations, (-1, normalizer.size)),
      tf.reshape(mask, (-1,)),
    )

  def spread(self, policy: tf.Tensor, mask: tf.Tensor) -> dict[str, tf.Tensor]:
    """The metric 'sigma' of Gaussian outputs [T, B, size]; {} for others."""
    if not isinstance(self.head, policy_heads.Gaussian):
      return {}
    sigma = tf.reduce_mean(self.head.scale(policy)[1], axis=-1)
    return {'sigma': policy_gradient.masked_mean(sigma, mask)}

  def remarks(self, metrics: Mapping[str, float]) -> list[str]:
    # A sigma of 0 means that the batch had no experience.
    if not 0 < metrics.get('sigma', 0.0) < _SMALL_SIGMA:
      return []
    return [
      f"The policy's standard deviation is {metrics['sigma']:.4f} in the mean, "
      'of actions in [-1, 1]: it hardly explores any more. Raise '
      'agent.entropy_cost or agent.sigma_min, or lower agent.learning_rate.'
    ]

  def exploration(self, actor_steps: int) -> float:
    """Returns 0: a stochastic policy explores without added noise."""
    return 0.0

  def actor(
    self, info: base.ActorInfo, num_envs: int
  ) -> unroll_acting.SamplingActor:
    """Returns an `unrolls.UnrollActor`; its behaviour ignores the rank."""
    return unroll_acting.SamplingActor(self, num_envs)

  def greedy(self, theta: np.ndarray) -> unroll_acting.GreedyPolicy:
    return unroll_acting.GreedyPolicy(self, theta)

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    found = self.network.operations(self.layout.unpack(theta))
    return found + self.head.operations()

  def greedy_each(self, theta: np.ndarray) -> base.Members:
    if self.network.images or self.network.lstm is not None:
      return super().greedy_each(theta)
    return unroll_acting.GreedyMembers(self, theta)
