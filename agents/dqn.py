"""DQN: Mnih et al. 2015, with the double and n-step variants as options.

The same agent is the plain baseline (one member), the explorers of PSO-DQN
(P members, swarm topology) and later the learner of Ape-X.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math

import numpy as np
import tensorflow as tf

from agents import base
from agents import checks
from agents import networks
from agents import optimizers
from agents import parameters
from agents import swarm
from agents.losses import value
from environment_loops import environments
from replay import packing


@dataclasses.dataclass(frozen=True)
class Config:
  """DQN. Defaults are specs' small-scale values for CartPole-v1 [R].

  Those marked [T] were chosen by trial (docs/agents/pso_dqn.md): with ReLU, one
  step and no double learning the values of CartPole-v1 need 30k updates to
  rise to their level, and overshoot with faster targets.
  """

  hidden_sizes: tuple[int, ...] = (64, 64)  # units
  activation: str = 'tanh'  # 'relu' or 'tanh' [T]
  learning_rate: float = 1e-3  # per update; paper of the swarm: 0.01
  optimizer: str = 'adam'  # 'adam', 'rmsprop' or 'sgd'
  gamma: float = 0.99  # per environment step
  n_step: int = 5  # environment steps in one return [T]; paper: 1
  batch_size: int = 64  # transitions per update
  loss: str = 'huber'  # 'huber' (delta 1) or 'squared'
  double: bool = True  # double Q-learning [T]; False is equation 5
  reward_scale: float = 1.0  # factor on rewards in the loss only
  target_update_period: int = 100  # learner steps
  target_update_tau: float = 1.0  # 1 copies the online network
  max_replay_size: int = 20_000  # transitions per member
  min_replay_size: int = 500  # transitions per member before learning
  env_steps_per_update: int = 1  # environment steps per learner step
  epsilon_start: float = 1.0  # probability of a random action
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
        'env_steps_per_update',
      ),
    )
    checks.positive(self, 'agent', ('learning_rate', 'reward_scale'))
    fractions = {
      'gamma': self.gamma,
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
    if self.epsilon_steps < 0:
      raise ValueError(
        f'agent.epsilon_steps={self.epsilon_steps} must not be negative.'
      )
    if not self.hidden_sizes or min(self.hidden_sizes) < 1:
      raise ValueError(
        f'agent.hidden_sizes={self.hidden_sizes} must be positive sizes.'
      )
    if self.loss not in _LOSSES:
      raise ValueError(
        f'agent.loss={self.loss!r} is not known. Choose one of '
        f'{sorted(_LOSSES)}.'
      )
    if self.min_replay_size > self.max_replay_size:
      raise ValueError(
        f'agent.min_replay_size={self.min_replay_size} is above '
        f'max_replay_size={self.max_replay_size}: learning could never start.'
      )
    optimizers.make(self.optimizer)


_LOSSES = {'huber': value.huber, 'squared': value.squared}


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
      environments.EnvironmentRefused: the actions are not discrete.
    """
    num_actions = environments.require_discrete(spec, 'DQN')
    self.config = config
    self.spec = spec
    self.gamma = config.gamma
    self.n_step = config.n_step
    self.batch_size = config.batch_size
    self.optimizer = optimizers.make(config.optimizer)
    self.target_update = base.TargetUpdate(
      config.target_update_period, config.target_update_tau
    )
    self._network = networks.MLP(
      input_size=math.prod(spec.observation_shape),
      hidden_sizes=tuple(config.hidden_sizes),
      output_size=num_actions,
      activation=config.activation,
      name='q',
    )
    self.layout = parameters.Layout(
      self._network.shapes(),
      groups={'q': [name for name, _ in self._network.shapes()]},
    )
    self._apply: Callable[..., tf.Tensor] | None = None

  def initial(self, seed: int) -> np.ndarray:
    return self.layout.pack(self._network.initial(np.random.default_rng(seed)))

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: packing.Transition,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """Mean loss over the valid transitions `[B]` (specs/pso.md, equation 5)."""
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
    return base.LossOutput(mean, tf.abs(td_error), metrics)

  def exploration(self, actor_steps: int) -> float:
    """Epsilon: linear between its two ends over `epsilon_steps`."""
    config = self.config
    done = min(1.0, actor_steps / max(config.epsilon_steps, 1))
    return config.epsilon_start + done * (
      config.epsilon_end - config.epsilon_start
    )

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    q = self._network.forward(self.layout.unpack(theta), observation)
    actions = q.argmax(axis=-1).astype(np.int32)
    explore = rng.random(actions.shape) < self.exploration(actor_steps)
    if explore.any():
      random = rng.integers(0, q.shape[-1], actions.shape, dtype=np.int32)
      actions = np.where(explore, random, actions)
    return actions

  def greedy(self, theta: np.ndarray) -> base.Policy:
    variables = self.layout.unpack(np.array(theta, np.float32)[None])

    def policy(observation: np.ndarray) -> np.ndarray:
      q = self._network.forward(variables, observation[None])
      return q[0].argmax(axis=-1).astype(np.int32)

    return policy

  def learning_rate(self, info: base.ActorInfo, spread: str) -> float:
    return swarm.learning_rate(self.config.learning_rate, info, spread)
