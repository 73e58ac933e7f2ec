"""What DDPG and D4PG share: a deterministic policy, critics, and their updates.

What theta holds: networks.py. One loss serves both networks: it is
the sum of the critics' and the policy's, and each group sees only its own.

The options of TD3 (Fujimoto et al. 2018) are here too, so both agents have
them: `twin_critics`, `policy_delay`, `smoothing_sigma`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from agents import base
from agents import noise
from agents import optimizers
from agents.actor_critic import config as actor_critic_config
from agents.actor_critic import networks as actor_critic_networks
from agents.losses import policy as policy_losses
from agents.networks import conv
from environment_loops import environments
from replay import packing

# Added to priorities: an item of priority 0 would never be drawn again.
_PRIORITY_FLOOR = 1e-6
# From this share of flat tanhs on the policy hardly learns.
_SATURATED_SHARE = 0.9


class CriticLoss(NamedTuple):
  """What the critics make of a batch.

  Attributes:
    losses: summed over the critics, [B].
    priorities: [B].
    metrics: name to [B].
  """

  losses: tf.Tensor
  priorities: tf.Tensor
  metrics: dict[str, tf.Tensor]


class ActorCritic(base.Agent):
  """A deterministic policy that climbs the value its critics give it."""

  metrics = {
    'loss': 'mean',  # of the critics
    'policy_loss': 'mean',  # -Q(s, mu(s))
    'q_mean': 'mean',
    'td_error': 'mean',
    'target_max': 'max',  # read by swarm.claim_mode='target'
    'target_min': 'min',
    'policy_saturation': 'mean',
  }

  rate_settings = ('agent.policy_learning_rate', 'agent.critic_learning_rate')

  def __init__(
    self,
    config: actor_critic_config.Config,
    spec: environments.Spec,
    critic_outputs: int,
  ):
    """Makes the agent for one environment.

    Args:
      config: numbers.
      spec: of the environment.
      critic_outputs: outputs of one critic.

    Raises:
      environments.EnvironmentRefused: discrete or unbounded actions.
    """
    require_continuous(spec, self.name.upper())
    if conv.is_image(spec):
      raise environments.EnvironmentRefused(
        f'{spec.name} has images {spec.observation_shape}, but {self.name} has '
        'no convolutions, and as numbers they would make its first layers '
        'huge. Use PPO or IMPALA, or make them few numbers with a wrapper.'
      )
    self.config = config
    self.spec = spec
    self.gamma = config.gamma
    self.n_step = config.n_step
    self.batch_size = config.batch_size
    self.max_gradient_norm = config.max_gradient_norm
    if config.prioritized:
      self.priority_exponent = config.priority_exponent
      self.importance_exponent = config.importance_exponent
    self.optimizer = optimizers.make(config.optimizer)
    self.target_update = base.TargetUpdate(
      config.target_update_period, config.target_update_tau
    )
    self.serve_target = config.serve_target
    self._networks = actor_critic_networks.Networks(
      math.prod(spec.observation_shape),
      math.prod(spec.action_shape),
      config.policy_sizes,
      config.critic_sizes,
      critic_outputs,
      config.activation,
      num_critics=2 if config.twin_critics else 1,
      normalize=config.normalize_observations,
      prioritized=config.prioritized,
    )
    self.layout = self._networks.layout
    # The policy's rate keeps its ratio to the critic's, whatever the latter is
    # in one member.
    self.learning_rate = config.critic_learning_rate
    scale = np.ones(self.layout.size, np.float32)
    scale[self.layout.groups['policy']] = (
      config.policy_learning_rate / config.critic_learning_rate
    )
    self.learning_rate_scale = scale
    if config.anneal_updates is not None:
      self.rate_end = base.RateEnd(
        config.anneal_updates, 'agent.anneal_updates', config.anneal_updates
      )
    if config.policy_delay > 1:
      self.delayed = np.zeros(self.layout.size, bool)
      self.delayed[self.layout.groups['policy']] = True
    self._exploration = self.make_exploration()

  def initial(self, seed: int) -> np.ndarray:
    return self._networks.initial(np.random.default_rng(seed))

  @abc.abstractmethod
  def _values(self, outputs: tf.Tensor) -> tf.Tensor:
    """Q [B] from a critic's outputs [B, ...]."""

  @abc.abstractmethod
  def _critic_loss(
    self,
    outputs: Sequence[tf.Tensor],
    target_outputs: Sequence[tf.Tensor],
    r_t: tf.Tensor,
    discount_t: tf.Tensor,
  ) -> CriticLoss:
    """The critics' loss.

    Args:
      outputs: of each online critic at (s_{t-1}, a_{t-1}), [B, ...].
      target_outputs: of each target critic at s_t and the target policy's
        action there, [B, ...].
      r_t: scaled n-step reward sum, [B].
      discount_t: all of gamma, 0 after a termination, [B].
    """

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: packing.Transition,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """The critics' loss and the policy's (docs/agents/d4pg.md)."""
    nets = self._networks
    online, target = nets.split(variables), nets.split(target_variables)
    raw = nets.flat(batch.o_tm1)
    # Target networks use the online normalizer: it is not learned.
    o_tm1 = nets.scaled(online, raw)
    o_t = nets.scaled(online, nets.flat(batch.o_t))
    critic = self._critic_loss(
      nets.critics(online, o_tm1, batch.a_tm1),
      nets.critics(target, o_t, self._target_action(target, o_t, batch)),
      self.config.reward_scale * batch.r_t,
      # The writer stores gamma^(m-1) * prod(d); one more gamma belongs here.
      self.config.gamma * batch.d_t,
    )
    policy, metrics = self._policy_loss(online, o_tm1)
    metrics.update(critic.metrics, loss=critic.losses)
    weight = batch.weight
    total = tf.maximum(tf.reduce_sum(weight), 1.0)
    losses = critic.losses if importance is None else importance * critic.losses
    priorities = critic.priorities + _PRIORITY_FLOOR
    return base.LossOutput(
      tf.reduce_sum(weight * (losses + policy)) / total,
      priorities,
      {
        name: pool(self.metrics[name], metrics[name], weight, total)
        for name in self.metrics
      },
      nets.statistics(online, raw, priorities, weight),
    )

  def _target_action(self, target, o_t, batch) -> tf.Tensor:
    a_t = tf.tanh(self._networks.preactivation(target, o_t))
    config = self.config
    if config.smoothing_sigma:
      draws = policy_losses.noise_like(a_t, batch.o_t, batch.r_t)
      a_t = policy_losses.smoothed(
        a_t, config.smoothing_sigma * draws, config.smoothing_limit
      )
    return a_t

  def _policy_loss(self, online, o_tm1) -> tuple[tf.Tensor, dict]:
    nets = self._networks
    preactivation = nets.preactivation(online, o_tm1)
    a_tm1 = tf.tanh(preactivation)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(a_tm1)
      q = self._values(nets.critics(online, o_tm1, a_tm1, count=1)[0])
    losses = policy_losses.deterministic_policy_gradient(
      a_tm1, tape.gradient(q, a_tm1), self.config.max_dq_da
    )
    saturation = policy_losses.saturation(preactivation)
    return losses, {'policy_loss': -q, 'policy_saturation': saturation}

  def due(self, update: tf.Tensor) -> tf.Tensor:
    return tf.equal((update + 1) % self.config.policy_delay, 0)

  def rate_factor(self, update: tf.Tensor) -> tf.Tensor | None:
    """1, then linear to 0: see `Config.anneal_updates`."""
    config = self.config
    return optimizers.annealed(
      update, config.anneal_updates, config.anneal_after
    )

  def exploration(self, actor_steps: int) -> float:
    """Sigma of the noise; 1 while actions are random."""
    config = self.config
    return 1.0 if actor_steps < config.random_steps else config.sigma

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [P, K, *action_shape]. The agent keeps the noise's state: one
    instance acts for one set of environments."""
    return self.explore(theta, observation, actor_steps, rng, self._exploration)

  def ended(self, last: np.ndarray) -> None:
    """Says where an episode that `act` acts in has ended, bool [P, K]."""
    self._exploration.ended(last)

  def explore(
    self,
    theta: np.ndarray,
    observation: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
    exploration: noise.Exploration,
  ) -> np.ndarray:
    """As `act`, with an exploration of the caller's."""
    means = self.means(theta, observation)
    actions = exploration(means, actor_steps, rng)
    return actions.reshape(actions.shape[:2] + self.spec.action_shape)

  def means(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """The policy's own actions, flat: [P, K, A]."""
    return self._networks.means(self.layout.unpack(theta), observation)

  def make_exploration(self) -> noise.Exploration:
    """A new one, as the config says."""
    config = self.config
    process = noise.make(config.noise, config.sigma, config.noise_theta)
    return noise.Exploration(process, config.random_steps)

  def actor(self, info: base.ActorInfo, num_envs: int) -> base.Actor:
    del info, num_envs
    return _Explorer(self, self._networks.largest_priority)

  def greedy(self, theta: np.ndarray) -> base.Policy:
    variables = self.layout.unpack(np.array(theta, np.float32)[None])

    def policy(observation: np.ndarray) -> np.ndarray:
      actions = self._networks.means(variables, observation[None])[0]
      return actions.reshape(actions.shape[:1] + self.spec.action_shape)

    return policy

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    return self._networks.operations(self.layout.unpack(theta))

  def greedy_each(self, theta: np.ndarray) -> base.Members:
    def act(theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
      actions = self.means(theta, observation)
      return actions.reshape(actions.shape[:2] + self.spec.action_shape)

    return base.GreedyMembers(theta, act)

  def remarks(self, metrics: Mapping[str, float]) -> list[str]:
    """What a user should hear of these metrics of the loss."""
    share = metrics['policy_saturation']
    if share < _SATURATED_SHARE:
      return []
    return [
      f"{share:.0%} of the policy's actions are at the ends of their range, "
      'where tanh is flat: it hardly learns. Set '
      'agent.normalize_observations=True and agent.max_dq_da=1, or lower '
      'agent.policy_learning_rate.'
    ]


class _Explorer:
  """The behaviour of one actor, with a noise of its own."""

  def __init__(
    self,
    agent: ActorCritic,
    largest_priority: Callable[[np.ndarray], float | None],
  ):
    self._agent = agent
    self._largest = largest_priority
    self._exploration = agent.make_exploration()

  def act(self, theta, observation, actor_steps, rng):
    return self._agent.explore(
      theta[None], observation[None], actor_steps, rng, self._exploration
    )[0]

  # The parts of `act`, for many actors at once (batched_acting.py).

  def inputs(self, observation, actor_steps):
    return observation, np.full(len(observation), actor_steps)

  def forward(self, theta, observation, actor_steps):
    return self._agent.means(theta[None], observation[None])[0], actor_steps

  def choose(self, outputs, streams):
    means, actor_steps = outputs
    actions = np.empty_like(means)
    for (rows, rng), explorer in zip(streams.parts, streams.actors):
      explore, steps = explorer._exploration, actor_steps[rows.start]
      actions[rows] = explore(means[None, rows], steps, rng)[0]
    return (actions.reshape(len(means), *self._agent.spec.action_shape),)

  def take(self, actions):
    return actions

  def priorities(self, theta, packed):
    """The largest priority of the learner so far.

    An actor computes no TD error; the learner's largest is part of theta. It
    starts at 1.
    """
    largest = self._largest(theta)
    return None if largest is None else np.full(len(packed), largest)

  def ended(self, last):
    self._exploration.ended(last)


def require_continuous(spec: environments.Spec, agent: str) -> None:
  """Refuses an environment that a bounded deterministic policy cannot act in.

  Raises:
    environments.EnvironmentRefused: discrete or unbounded actions.
  """
  if spec.discrete:
    raise environments.EnvironmentRefused(
      f'{spec.name} takes {spec.num_actions} discrete actions, but {agent} '
      'needs continuous ones. Choose an environment with a Box action space, '
      'for example Pendulum-v1, or an agent for discrete actions such as DQN.'
    )
  bounds = (spec.action_minimum or ()) + (spec.action_maximum or ())
  if not np.isfinite(bounds).all():
    raise environments.EnvironmentRefused(
      f'{spec.name} takes unbounded actions (low={spec.action_minimum}, '
      f'high={spec.action_maximum}), but {agent} ends in a tanh, which can '
      'only be mapped to finite bounds. '
      f'{environments.how_to_bound(spec.action_shape)}'
    )


def pool(
  how: str, values: tf.Tensor, weight: tf.Tensor, total: tf.Tensor
) -> tf.Tensor:
  """'mean', 'max' or 'min' of `values [B]` where there is a transition."""
  if how == 'mean':
    return tf.reduce_sum(weight * values) / total
  if how == 'max':
    return tf.reduce_max(tf.where(weight > 0, values, -math.inf))
  return tf.reduce_min(tf.where(weight > 0, values, math.inf))
