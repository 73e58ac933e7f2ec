"""What DDPG, D4PG and SAC share: a policy that climbs critics, from replay.

What theta holds: networks.py. One loss serves all networks: it is the sum of
the critics' and the policy's, and each group sees only its own. Critics are
scalar and learn by squared TD error, unless an agent says otherwise.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import member_losses
from murmuration.agents import parameters
from murmuration.agents import replay_agent
from murmuration.agents.actor_critic import config as actor_critic_config
from murmuration.agents.actor_critic import networks as actor_critic_networks
from murmuration.agents.losses import priorities as priorities_lib
from murmuration.agents.losses import value
from murmuration.agents.networks import conv
from murmuration.environment_loops import environments
from murmuration.replay import packing


class Exploration(Protocol):
  """How an actor explores; may keep a state for each environment."""

  def __call__(
    self, outputs: np.ndarray, rng: np.random.Generator
  ) -> np.ndarray:
    """Actions [P, K, A] for what `ActorCritic.acting` gives, [P, K, ...]."""

  def ended(self, last: np.ndarray) -> None:
    """Says where an episode has ended, bool [K] or [P, K]."""
    return None


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


class ActorCritic(replay_agent.ReplayAgent):
  """A policy that climbs the value its critics give it."""

  metrics = {
    'loss': 'mean',  # of the critics
    'policy_loss': 'mean',
    'q_mean': 'mean',
    'td_error': 'mean',
    'target_max': 'max',
    'target_min': 'min',
  }

  rate_settings: tuple[str, ...] = (
    'agent.policy_learning_rate',
    'agent.critic_learning_rate',
  )
  maxima = (actor_critic_networks.MAXIMUM,)

  def __init__(
    self,
    config: actor_critic_config.Config,
    spec: environments.Spec,
    **networks: Any,
  ):
    """Makes the agent for one environment.

    Args:
      config: numbers.
      spec: of the environment.
      **networks: what `networks.Networks` is to have, of its own.

    Raises:
      environments.EnvironmentRefused: discrete actions, or observations that
        the network does not take.
    """
    require_continuous(spec, self.name.upper())
    self.config: actor_critic_config.Config = config
    super().__init__(config, spec)
    self._networks = actor_critic_networks.Networks(
      config, spec, make_encoder(config, spec), **networks
    )
    self.layout = self._networks.layout
    self.prepared = parameters.Prepared(self.layout, self._networks.prepare)
    self.learning_rate = config.critic_learning_rate
    self.learning_rate_scale: np.ndarray = np.ones(self.layout.size, np.float32)
    self._set_rate('policy', config.policy_learning_rate)
    self._exploration = self.make_exploration()

  def _set_rate(self, part: str, rate: float) -> None:
    """A part's rate, as a ratio to the critic's, which differs by member."""
    place = self._networks.place(part)
    self.learning_rate_scale[place] = rate / self.learning_rate

  def initial(self, seed: int) -> np.ndarray:
    return self._networks.initial(np.random.default_rng(seed))

  def _values(self, outputs: tf.Tensor) -> tf.Tensor:
    """Q [B] from a critic's outputs [B, ...]."""
    return tf.squeeze(outputs, axis=-1)

  def _critic_loss(
    self,
    outputs: Sequence[tf.Tensor],
    target_outputs: Sequence[tf.Tensor],
    r_t: tf.Tensor,
    discount_t: tf.Tensor,
  ) -> CriticLoss:
    """The critics' loss: half the squared TD error of each.

    Args:
      outputs: of each online critic at (s_{t-1}, a_{t-1}), [B, ...].
      target_outputs: of each target critic at s_t and the action there,
        [B, ...].
      r_t: scaled n-step reward sum, [B].
      discount_t: all of gamma, 0 after a termination, [B].
    """
    # Fujimoto et al., Eq. 10: the smaller of two is less often too large.
    q_t = self._values(tf.reduce_min(tf.stack(target_outputs), axis=0))
    target = tf.stop_gradient(r_t + discount_t * q_t)
    q_tm1 = [self._values(o) for o in outputs]
    errors = [target - q for q in q_tm1]
    size = tf.add_n([tf.abs(e) for e in errors]) / len(errors)
    return CriticLoss(
      tf.add_n([value.squared(e) for e in errors]),
      size,
      {
        'q_mean': q_tm1[0],
        'td_error': size,
        'target_max': target,
        'target_min': target,
      },
    )

  @abc.abstractmethod
  def _target_action(
    self,
    online: actor_critic_networks.Parts,
    target: actor_critic_networks.Parts,
    o_t: tf.Tensor,
    batch: packing.Transition,
  ) -> tuple[tf.Tensor, Any]:
    """The action [B, A] at s_t, and `more`, [B] or one number.

    That is what the action's value is more than Q'.
    """

  @abc.abstractmethod
  def _policy_loss(
    self,
    online: actor_critic_networks.Parts,
    o_tm1: tf.Tensor,
    batch: packing.Transition,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Losses [B] of all that the critics' leaves alone, and metrics [B]."""

  @abc.abstractmethod
  def make_exploration(self) -> Exploration:
    """A new one, as the config says."""

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: packing.Transition,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """The critics' loss and the policy's (docs/agents/d4pg.md, sac.md)."""
    nets = self._networks
    online, target = nets.split(variables), nets.split(target_variables)
    raw = nets.flat(batch.o_tm1)
    # Target networks use the online normalizer: it is not learned.
    o_tm1 = nets.scaled(online, raw)
    o_t = nets.scaled(online, nets.flat(batch.o_t))
    # The writer stores gamma^(m-1) * prod(d); one more gamma belongs here.
    discount_t = self.config.gamma * batch.d_t
    a_t, more = self._target_action(online, target, o_t, batch)
    more = discount_t * more
    self._check('_target_action', batch, more=more)
    critic = self._critic_loss(
      nets.critics(online, o_tm1, batch.a_tm1),
      nets.critics(target, o_t, a_t),
      self.config.reward_scale * batch.r_t + more,
      discount_t,
    )
    self._check(
      '_critic_loss',
      batch,
      losses=critic.losses,
      priorities=critic.priorities,
      **critic.metrics,
    )
    policy, metrics = self._policy_loss(online, o_tm1, batch)
    self._check('_policy_loss', batch, losses=policy, **metrics)
    metrics.update(critic.metrics, loss=critic.losses)
    weight = batch.weight
    total = tf.maximum(tf.reduce_sum(weight), 1.0)
    losses = critic.losses if importance is None else importance * critic.losses
    priorities = critic.priorities + priorities_lib.MINIMUM
    return base.LossOutput(
      tf.reduce_sum(weight * (losses + policy)) / total,
      priorities,
      {
        name: pool(self.metrics[name], metrics[name], weight, total)
        for name in self.metrics
      },
      nets.statistics(online, raw, priorities, weight),
    )

  def _check(
    self, method: str, batch: packing.Transition, **returned: tf.Tensor
  ) -> None:
    """Refuses what a method returns in another shape than [B]."""
    for name, x in returned.items():
      member_losses.check_shape(
        f'`{name}` of what {type(self).__name__}.{method} returns, [B],',
        x,
        batch.weight.shape,
        'Give one number for each transition.',
      )

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [P, K, *action_shape]. The agent keeps the state of the
    exploration: one instance acts for one set of environments."""
    outputs = self.acting(theta, observation)
    return self.explored(outputs, actor_steps, rng, self._exploration)

  def ended(self, last: np.ndarray) -> None:
    """Says where an episode that `act` acts in has ended, bool [P, K]."""
    self._exploration.ended(last)

  def explored(
    self,
    outputs: np.ndarray,
    actor_steps: int,
    rng: np.random.Generator,
    exploration: Exploration,
  ) -> np.ndarray:
    """Actions [P, K, *action_shape] for what `acting` gave: first random."""
    shape = self.spec.action_shape
    if actor_steps < self.config.random_steps:
      size = (*outputs.shape[:2], math.prod(shape))
      actions = rng.uniform(-1.0, 1.0, size).astype(np.float32)
    else:
      actions = exploration(outputs, rng)
    return actions.reshape(actions.shape[:2] + shape)

  def means(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """The policy's own actions, flat: [P, K, A]."""
    return self._networks.means(self.prepared(theta), observation)

  def acting(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """What the exploration takes: the policy's own actions."""
    return self.means(theta, observation)

  def actor(self, info: base.ActorInfo, num_envs: int) -> base.Actor:
    return _Explorer(self)

  def greedy(self, theta: np.ndarray) -> base.Policy:
    variables = self.layout.unpack(np.array(theta, np.float32)[None])
    parts = self._networks.prepare(variables)

    def policy(observation: np.ndarray) -> np.ndarray:
      actions = self._networks.means(parts, observation[None])[0]
      return actions.reshape(actions.shape[:1] + self.spec.action_shape)

    return policy

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    return self._networks.operations(self.layout.unpack(theta))

  def greedy_each(self, theta: np.ndarray) -> base.Members:
    if self.images:  # what is prepared of an encoder follows no theta
      return super().greedy_each(theta)

    def act(theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
      actions = self.means(theta, observation)
      return actions.reshape(actions.shape[:2] + self.spec.action_shape)

    return base.GreedyMembers(theta, act)


class _Explorer(base.Actor):
  """The behaviour of one actor, with an exploration of its own."""

  def __init__(self, agent: ActorCritic):
    self._agent = agent
    self._exploration = agent.make_exploration()

  def act(self, theta, observation, actor_steps, rng):
    outputs = self._agent.acting(theta, observation[None])
    return self._agent.explored(outputs, actor_steps, rng, self._exploration)[0]

  # The parts of `act`, for many actors at once (batched_acting.py).

  def inputs(self, observation, actor_steps):
    return observation, np.full(len(observation), actor_steps)

  def forward(self, theta, observation, actor_steps):
    return self._agent.acting(theta, observation[None])[0], actor_steps

  def choose(self, outputs, streams):
    found, actor_steps = outputs
    actions = [
      self._agent.explored(
        found[None, rows], actor_steps[rows.start], rng, explorer._exploration
      )[0]
      for (rows, rng), explorer in zip(streams.parts, streams.actors)
    ]
    return (np.concatenate(actions),)

  def take(self, actions):
    return actions

  def priorities(self, theta, packed):
    """The largest priority of the learner so far.

    An actor computes no TD error; the learner's largest is part of theta. It
    starts at 1.
    """
    largest = self._agent._networks.largest_priority(theta)
    return None if largest is None else np.full(len(packed), largest)

  def ended(self, last):
    self._exploration.ended(last)


def make_encoder(
  config: actor_critic_config.Config, spec: environments.Spec
) -> conv.ConvNet | None:
  """What an agent sees images with; None where there are none.

  Raises:
    environments.EnvironmentRefused: the config has a network for other
      observations, or would scale images twice.
  """
  kind = conv.chosen(config.network, spec)
  if kind == 'mlp':
    return None
  if config.normalize_observations:
    raise environments.EnvironmentRefused(
      f'{spec.name} has images {spec.observation_shape}, which the encoder '
      'scales to [0, 1] by itself, but agent.normalize_observations=True. Set '
      '--config.agent.normalize_observations=False.'
    )
  return conv.make(kind, spec, actor_critic_networks.FEATURES, name='encoder')


def require_continuous(spec: environments.Spec, agent: str) -> None:
  """Raises environments.EnvironmentRefused if actions are discrete."""
  if spec.discrete:
    raise environments.EnvironmentRefused(
      f'{spec.name} takes {spec.num_actions} discrete actions, but {agent} '
      'needs continuous ones. Choose an environment with a Box action space, '
      'for example Pendulum-v1, or an agent for discrete actions such as DQN.'
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
