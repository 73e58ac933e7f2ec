"""DQN: Mnih et al. 2015, with the parts that were added later as options.

Double Q-learning, n-step returns, a dueling head, prioritized replay, a ladder
of epsilons. The same agent is the plain baseline (one member), the explorers of
PSO-DQN (P members, swarm topology) and Ape-X DQN (actors and a learner).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf

from agents import base
from agents import checks
from agents import dqn_actor
from agents import exploration as exploration_lib
from agents import optimizers
from agents import parameters
from agents.losses import priorities
from agents.losses import value
from agents.networks import conv
from agents.networks import mlp
from agents.swarm import explorers
from environment_loops import environments
from replay import packing


@dataclasses.dataclass(frozen=True)
class Config:
  """DQN. Defaults are specs' small-scale values for CartPole-v1 [R].

  Those marked [T] were chosen by trial (docs/agents/pso_dqn.md): with ReLU, one
  step and no double learning the values of CartPole-v1 need 30k updates to
  rise to their level, and overshoot with faster targets.
  """

  # 'mlp'; for images 'nature' or 'shallow' of conv.py; 'auto': what fits.
  network: str = 'auto'
  hidden_sizes: tuple[int, ...] = (64, 64)  # units, of 'mlp'
  activation: str = 'tanh'  # 'relu' or 'tanh' [T], of 'mlp'
  dueling: bool = False  # Q = V + A - mean A, two streams
  learning_rate: float = 1e-3  # per update; paper of the swarm: 0.01
  # Learner steps at which the rate has fallen to 0, in a line that begins
  # after `anneal_after` of them; None: it stays.
  anneal_updates: int | None = None
  anneal_after: int = 0
  optimizer: str = 'adam'  # or another of optimizers.py
  max_gradient_norm: float | None = None  # of the whole gradient; Ape-X: 40
  gamma: float = 0.99  # per environment step
  n_step: int = 5  # environment steps in one return [T]; paper: 1
  batch_size: int = 64  # transitions per update
  loss: str = 'huber'  # 'huber' (delta 1) or 'squared'
  double: bool = True  # double Q-learning [T]; False is equation 5
  reward_scale: float = 1.0  # factor on rewards in the loss only
  # Each reward, never an n-step sum, to [-c, c] before it is stored; Atari: 1.
  reward_clip: float | None = None
  target_update_period: int = 100  # learner steps
  target_update_tau: float = 1.0  # 1 copies the online network
  serve_target: bool = False  # the target network acts and is judged
  max_replay_size: int = 20_000  # transitions per member
  min_replay_size: int = 500  # transitions per member before learning
  prioritized: bool = False  # replay by TD error, else uniform
  priority_exponent: float = 0.6  # alpha; of prioritized replay only
  importance_exponent: float = 0.4  # beta; of prioritized replay only
  exploration: str = 'schedule'  # 'schedule' falls; 'ladder' is Ape-X's
  epsilon: float = 0.4  # of 'ladder': the most curious environment
  epsilon_alpha: float = 7.0  # of 'ladder': down to epsilon^(1 + alpha)
  epsilon_start: float = 1.0  # of 'schedule': chance of a random action
  epsilon_end: float = 0.05
  epsilon_steps: int = 5_000  # actor steps from start to end, linear

  def __post_init__(self):
    checks.whole(
      self,
      'agent',
      (
        'n_step',
        'batch_size',
        'target_update_period',
        'max_replay_size',
        'min_replay_size',
      ),
    )
    checks.positive(
      self,
      'agent',
      (
        'learning_rate',
        'reward_scale',
        'reward_clip',
        'max_gradient_norm',
      ),
    )
    fractions = {
      'gamma': self.gamma,
      'priority_exponent': self.priority_exponent,
      'importance_exponent': self.importance_exponent,
      'epsilon': self.epsilon,
      'epsilon_start': self.epsilon_start,
      'epsilon_end': self.epsilon_end,
      'target_update_tau': self.target_update_tau,
    }
    for name, number in fractions.items():
      if not 0 <= number <= 1:
        raise ValueError(f'agent.{name}={number} must be between 0 and 1.')
    if self.target_update_tau == 0:
      raise ValueError(
        'agent.target_update_tau=0 would never move the target network. '
        'Use 1 to copy it every target_update_period updates.'
      )
    for name in ('epsilon_steps', 'epsilon_alpha'):
      if not 0 <= getattr(self, name) < math.inf:
        raise ValueError(
          f'agent.{name}={getattr(self, name)} must not be negative, nor '
          'infinite.'
        )
    if not self.hidden_sizes or min(self.hidden_sizes) < 1:
      raise ValueError(
        f'agent.hidden_sizes={self.hidden_sizes} must be positive sizes.'
      )
    for name, known in _CHOICES.items():
      if getattr(self, name) not in known:
        raise ValueError(
          f'agent.{name}={getattr(self, name)!r} is not known. Choose one of '
          f'{sorted(known)}.'
        )
    checks.annealing(self, 'agent')
    if self.min_replay_size > self.max_replay_size:
      raise ValueError(
        f'agent.min_replay_size={self.min_replay_size} is above '
        f'max_replay_size={self.max_replay_size}: learning could never start.'
      )
    optimizers.make(self.optimizer)


_LOSSES = {'huber': value.huber, 'squared': value.squared}
_CHOICES = {
  'loss': tuple(_LOSSES),
  'network': ('auto', 'mlp', *conv.KINDS),
  'exploration': ('schedule', 'ladder'),
}


class DQN(base.Agent):
  """Q-learning from replay with a target network."""

  name = 'dqn'
  metrics = {
    'loss': 'mean',
    'q_mean': 'mean',
    'td_error': 'mean',
    'target_max': 'max',  # the literal claim of specs/pso.md reads it
  }

  def __init__(self, config: Config, spec: environments.Spec):
    """Makes the agent for one environment.

    Raises:
      environments.EnvironmentRefused: the actions are not discrete, or the
        observations are not what the network takes.
    """
    self.config = config
    self.spec = spec
    self.gamma = config.gamma
    self.n_step = config.n_step
    self.batch_size = config.batch_size
    self.optimizer = optimizers.make(config.optimizer)
    if config.anneal_updates is not None:
      self.rate_end = base.RateEnd(
        config.anneal_updates, 'agent.anneal_updates', config.anneal_updates
      )
    self.target_update = base.TargetUpdate(
      config.target_update_period, config.target_update_tau
    )
    self.serve_target = config.serve_target
    self.max_gradient_norm = config.max_gradient_norm
    self.reward_clip = config.reward_clip
    if config.prioritized:
      self.priority_exponent = config.priority_exponent
      self.importance_exponent = config.importance_exponent
    self._network = _make_network(config, spec)
    self.compiled = not isinstance(self._network, conv.ConvNet)
    self.layout = parameters.Layout(
      self._network.shapes(),
      groups={'q': [name for name, _ in self._network.shapes()]},
    )
    self._values = dqn_actor.Values(self._network, self.layout)
    self._apply: mlp.Apply | None = None

  def initial(self, seed: int) -> np.ndarray:
    return self.layout.pack(self._network.initial(np.random.default_rng(seed)))

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: packing.Transition,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """Mean loss over the valid transitions `[B]`.

    specs/pso.md, equation 5; with importance, specs/apex_dqn.md, section 2:
    the sum of w h(delta) over the number of valid transitions, not over the
    sum of the weights.
    """
    transition = batch
    if self._apply is None:
      self._apply = self._network.make_sonnet()
    config, apply = self.config, self._apply
    q_tm1 = apply(variables, transition.o_tm1)
    q_t = apply(target_variables, transition.o_t)
    # The writer stores gamma^(m-1) * prod(d); one more gamma belongs here.
    discount_t = config.gamma * transition.d_t
    r_t = config.reward_scale * transition.r_t
    if config.double:
      selector = apply(variables, transition.o_t)
      td_error = value.double_q_learning(
        q_tm1, transition.a_tm1, r_t, discount_t, q_t, selector
      )
    else:
      td_error = value.q_learning(q_tm1, transition.a_tm1, r_t, discount_t, q_t)
    weight = transition.weight
    total = tf.maximum(tf.reduce_sum(weight), 1.0)
    losses = weight * _LOSSES[config.loss](td_error)
    if importance is not None:
      losses *= importance
    mean = tf.reduce_sum(losses) / total
    metrics = {
      'loss': mean,
      'q_mean': tf.reduce_sum(weight * tf.reduce_mean(q_tm1, axis=-1)) / total,
      'td_error': tf.reduce_sum(weight * tf.abs(td_error)) / total,
      # A place without a transition must not pass for a claim.
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
    """Epsilon after so many steps; of a ladder, its most curious."""
    config = self.config
    if config.exploration == 'ladder':
      return config.epsilon
    return exploration_lib.linear(
      config.epsilon_start,
      config.epsilon_end,
      config.epsilon_steps,
      actor_steps,
    )

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """As in base; a ladder spans the K environments of each member."""
    epsilon = self.epsilons(
      base.ActorInfo(0, 1, 0), observation.shape[1], actor_steps
    )
    q = self._values(theta, observation)
    return exploration_lib.epsilon_greedy(q, epsilon, rng)

  def actor(self, info: base.ActorInfo, num_envs: int) -> dqn_actor.Actor:
    return dqn_actor.Actor(self, info, num_envs)

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

  def values(self) -> dqn_actor.Values:
    """Q of this network as actors compute it, with a memory of its own."""
    return dqn_actor.Values(self._network, self.layout)

  def greedy(self, theta: np.ndarray) -> base.Policy:
    theta, values = np.array(theta, np.float32), self.values()

    def policy(observation: np.ndarray) -> np.ndarray:
      q = values(theta, observation[None])
      return q[0].argmax(axis=-1).astype(np.int32)

    return policy

  def learning_rate(self, info: base.ActorInfo, spread: str) -> float:
    return explorers.learning_rate(self.config.learning_rate, info, spread)

  def rate_factor(self, update: tf.Tensor) -> tf.Tensor | None:
    """1, then linear to 0: see `Config.anneal_updates`."""
    config = self.config
    return optimizers.annealed(
      update, config.anneal_updates, config.anneal_after
    )


def _make_network(config: Config, spec: environments.Spec) -> mlp.Network:
  """The network of a config for the observations of an environment."""
  num_actions = environments.require_discrete(spec, 'DQN')
  images = spec.observation_dtype == 'uint8'
  needed = tuple(conv.KINDS) if images else ('mlp',)
  if config.network not in ('auto', *needed):
    raise environments.EnvironmentRefused(
      f'agent.network={config.network!r} does not take the '
      f'{spec.observation_dtype} observations of {spec.name}; '
      f'{" or ".join(map(repr, needed))} does. Set --config.agent.network=auto.'
    )
  if images:
    chosen = 'nature' if config.network == 'auto' else config.network
    return conv.ConvNet(
      spec.observation_shape, num_actions, config.dueling, chosen, name='q'
    )
  kind = mlp.DuelingMLP if config.dueling else mlp.MLP
  return kind(
    math.prod(spec.observation_shape),
    tuple(config.hidden_sizes),
    num_actions,
    config.activation,
    name='q',
  )
