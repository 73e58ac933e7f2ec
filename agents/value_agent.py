"""What agents that learn Q(s, .) share: all but the equation of their target.

A network with one output per action, a target network, replay (uniform or
prioritized), n-step returns, and epsilon-greedy actors on a schedule or ladder.
A subclass adds its temporal-difference error, as in dqn.py.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import dqn_actor
from murmuration.agents import exploration as exploration_lib
from murmuration.agents import member_losses
from murmuration.agents import parameters
from murmuration.agents import replay_agent
from murmuration.agents import settings
from murmuration.agents.losses import priorities
from murmuration.agents.losses import value
from murmuration.agents.networks import conv
from murmuration.agents.networks import mlp
from murmuration.environment_loops import environments
from murmuration.replay import packing

_LADDER = settings.only_with('exploration', 'ladder')
_SCHEDULE = settings.only_with('exploration', 'schedule')


@dataclasses.dataclass(frozen=True)
class Config(replay_agent.Config):
  """Settings of value agents. Defaults are DQN's, small-scale, for CartPole-v1.

  Some were chosen by trial (docs/agents/pso_dqn.md): with ReLU, one step and no
  double learning, the values of CartPole-v1 need 30k updates to reach their
  level, and overshoot with faster targets.
  """

  # Network: 'mlp' for vectors, the others for images (agents/networks/conv.py);
  # 'auto' chooses by the observations.
  network: conv.Name = 'auto'
  hidden_sizes: settings.Sizes = (64, 64)  # units of the layers of 'mlp'
  # Nonlinearity of the hidden layers of 'mlp'; by trial.
  activation: Literal['relu', 'tanh'] = 'tanh'
  dueling: bool = False  # whether Q = V + A - mean A, from two streams
  learning_rate: settings.Positive = 1e-3  # per update; Liu et al. 2018: 0.01
  # Environment steps in one return, by trial; Mnih et al. 2015: 1.
  n_step: settings.Whole = 5
  # Loss of the TD error: 'huber' with delta 1, or 'squared', half the square.
  loss: Literal['huber', 'squared'] = 'huber'
  # Bound c: each reward, not an n-step sum, is clipped to [-c, c] before it is
  # stored; None: no clipping. Atari: 1.
  reward_clip: settings.Positive | None = None
  target_update_period: settings.Whole = 100  # learner steps between updates
  max_replay_size: settings.Items = 20_000  # transitions per member, at most
  # Transitions per member in replay before learning begins.
  min_replay_size: settings.Items = 500
  # Epsilon, the chance of a random action: a 'schedule' falls with time; a
  # 'ladder' is constant and differs between environments (Ape-X).
  exploration: Literal['schedule', 'ladder'] = 'schedule'
  # Largest epsilon of a 'ladder'.
  epsilon: Annotated[settings.Fraction, _LADDER] = 0.4
  # Exponent alpha: a 'ladder' ends at epsilon^(1 + alpha).
  epsilon_alpha: Annotated[settings.NotNegative, _LADDER] = 7.0
  # First epsilon of a 'schedule'.
  epsilon_start: Annotated[settings.Fraction, _SCHEDULE] = 1.0
  # Last epsilon of a 'schedule'.
  epsilon_end: Annotated[settings.Fraction, _SCHEDULE] = 0.05
  # Actor steps over which a 'schedule' falls linearly.
  epsilon_steps: Annotated[settings.Count, _SCHEDULE] = 5_000

  def __post_init__(self):
    super().__post_init__()
    if self.exploration == 'schedule':
      low, high = 'agent.epsilon_end', 'agent.epsilon_start'
      why = 'a schedule falls. Set both to one number, and it stays there.'
      settings.ordered(self, low, high, why, equal=True)


_LOSSES = {'huber': value.huber, 'squared': value.squared}
# Observations [B, ...] to Q [B, A].
Q = Callable[['tf.Tensor'], 'tf.Tensor']


class ValueAgent(replay_agent.ReplayAgent):
  """Values of actions, learned from replay with a target network."""

  metrics = {
    'loss': 'mean',
    'q_mean': 'mean',
    'td_error': 'mean',
    'target_max': 'max',
  }

  def __init__(self, config: Config, spec: environments.Spec):
    """Makes the agent for one environment.

    Raises:
      environments.EnvironmentRefused: the actions are not discrete, or the
        network does not support the observations.
    """
    self.config: Config = config
    super().__init__(config, spec)
    self.learning_rate = config.learning_rate
    self.reward_clip = config.reward_clip
    self._network = _make_network(config, spec, self.name.upper())
    self.compiled = not self.images
    if self.images:
      self.ignored = conv.IGNORED
    self.layout = parameters.Layout(
      self._network.shapes(),
      groups={'q': [name for name, _ in self._network.shapes()]},
    )
    self._values = self.values()

  @functools.cached_property
  def _apply(self) -> mlp.Apply:
    return self._network.make_sonnet()

  def initial(self, seed: int) -> np.ndarray:
    return self.layout.pack(self._network.initial(np.random.default_rng(seed)))

  @abc.abstractmethod
  def td_error(
    self, q_tm1: tf.Tensor, online: Q, target: Q, transition: packing.Transition
  ) -> tf.Tensor:
    """y - Q(s, a), where no gradient flows through y.

    Args:
      q_tm1: Q(s, .) of the online network, [B, A].
      online: gives Q(o, .), [B, A], of observations [B, ...].
      target: the same of the target network.
      transition: [B]; r_t is scaled, and d_t, the factor of what y adds to r_t,
        includes all of gamma and is 0 after a termination.

    Returns:
      One number for each transition, [B]; another shape is refused.
    """

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: packing.Transition,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """Mean loss over the valid transitions `[B]`.

    With importance weights w (docs/agents/apex_dqn.md), the sum of w h(delta)
    over the number of valid transitions, not over the sum of the weights.
    """
    config = self.config
    online, target = (
      functools.partial(self._apply, each)
      for each in (variables, target_variables)
    )
    transition = batch._replace(
      r_t=config.reward_scale * batch.r_t,
      # Replay stores gamma^(m-1) * prod(d), which lacks one gamma.
      d_t=config.gamma * batch.d_t,
    )
    q_tm1 = online(transition.o_tm1)
    td_error = self.td_error(q_tm1, online, target, transition)
    weight = transition.weight
    member_losses.check_shape(
      f'What {type(self).__name__}.td_error returns, [B],',
      td_error,
      weight.shape,
      'Give one number for each transition.',
    )
    total = tf.maximum(tf.reduce_sum(weight), 1.0)
    losses = weight * _LOSSES[config.loss](td_error)
    if importance is not None:
      losses *= importance
    mean = tf.reduce_sum(losses) / total
    metrics = {
      'loss': mean,
      'q_mean': tf.reduce_sum(weight * tf.reduce_mean(q_tm1, axis=-1)) / total,
      'td_error': tf.reduce_sum(weight * tf.abs(td_error)) / total,
      # Padding (weight 0) is ignored.
      'target_max': tf.reduce_max(
        tf.where(
          weight > 0,
          td_error + value.select(q_tm1, transition.a_tm1),
          -math.inf,
        )
      ),
    }
    return base.LossOutput(mean, priorities.proportional(td_error), metrics)

  def exploration(self, actor_steps: int) -> float:
    """Epsilon after `actor_steps`; for a ladder, its largest."""
    config = self.config
    if config.exploration == 'ladder':
      return config.epsilon
    return exploration_lib.linear(
      config.epsilon_start,
      config.epsilon_end,
      config.epsilon_steps,
      actor_steps,
    )

  def check_exploration(self, num_envs: int) -> None:
    if self.config.exploration == 'ladder' and num_envs == 1:
      raise ValueError(
        "agent.exploration='ladder' has one rung here, as an agent without "
        'priorities acts in one environment: epsilon would be '
        f'{self.config.epsilon} to the end. Set agent.prioritized=True, which '
        "gives it more environments, or agent.exploration='schedule', or use "
        'actor_learner: --topology=actor_learner.'
      )

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """See `base.Agent.act`; a ladder spans each member's K environments."""
    epsilon = self.epsilons(
      base.ActorInfo(0, 1, 0), observation.shape[1], actor_steps
    )
    q = self._values(theta, observation)
    return exploration_lib.epsilon_greedy(q, epsilon, rng)

  def actor(self, info: base.ActorInfo, num_envs: int) -> dqn_actor.Actor:
    config = self.config
    ladder = self.epsilons(info, num_envs, 0)
    falls = config.exploration == 'schedule'  # a ladder is constant in time
    return dqn_actor.Actor(
      self.values(),
      lambda steps: self.epsilons(info, num_envs, steps) if falls else ladder,
      self.transition_layout() if config.prioritized else None,
      config.gamma,
      config.reward_scale,
    )

  def epsilons(
    self, info: base.ActorInfo, num_envs: int, actor_steps: int
  ) -> np.ndarray:
    """Chance of a random action in each environment of an actor, [K]."""
    config = self.config
    if config.exploration == 'ladder':
      return exploration_lib.actor_epsilons(
        info.index, info.count, num_envs, config.epsilon, config.epsilon_alpha
      )
    return np.full(num_envs, self.exploration(actor_steps))

  def values(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Q as actors compute it, with a cache of its own.

    [P, K, A] from theta [P, D], or [D] if P = 1, and observations [P, K, ...].
    """
    forward = self._network.forward
    prepared = parameters.Prepared(self.layout, self._network.prepare)
    return functools.partial(_forward, forward, prepared)

  def greedy(self, theta: np.ndarray) -> base.Policy:
    theta, values = np.array(theta, np.float32), self.values()

    def policy(observation: np.ndarray) -> np.ndarray:
      q = values(theta, observation[None])
      return q[0].argmax(axis=-1).astype(np.int32)

    return policy

  def operations(self, theta: np.ndarray) -> list[list[Any]]:
    variables = self.layout.unpack(theta)
    return [['float'], *self._network.operations(variables), ['argmax']]

  def greedy_each(self, theta: np.ndarray) -> base.Members:
    if not self.compiled:  # convolutions do not follow a theta changed in place
      return super().greedy_each(theta)
    values = self.values()

    def act(theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
      return values(theta, observation).argmax(axis=-1).astype(np.int32)

    return base.GreedyMembers(theta, act)


def _forward(
  forward: Callable[[Any, np.ndarray], np.ndarray],
  prepared: Callable[[np.ndarray], Any],
  theta: np.ndarray,
  observation: np.ndarray,
) -> np.ndarray:
  """Of a module, so that an agent can be pickled."""
  return forward(prepared(theta), observation)


def _make_network(
  config: Config, spec: environments.Spec, agent: str
) -> mlp.Network:
  num_actions = environments.require_discrete(spec, agent)
  network = conv.chosen(config.network, spec)
  if network != 'mlp':
    return conv.make(network, spec, num_actions, config.dueling, name='q')
  kind = mlp.DuelingMLP if config.dueling else mlp.MLP
  return kind(
    math.prod(spec.observation_shape),
    tuple(config.hidden_sizes),
    num_actions,
    config.activation,
    name='q',
  )
