"""The numbers that actor-critic agents share."""

from __future__ import annotations

import dataclasses
from typing import Literal

from agents import noise as noise_lib
from agents import optimizers
from agents import settings


@dataclasses.dataclass(frozen=True)
class Config:
  """What all of them have. Defaults are DDPG's (docs/agents/ddpg.md)."""

  policy_sizes: settings.Sizes = (64, 64)  # units
  critic_sizes: settings.Sizes = (64, 64)  # units
  activation: Literal['relu', 'tanh'] = 'relu'  # 'relu' or 'tanh'
  policy_learning_rate: settings.Positive = 1e-4  # per update; Lillicrap et al.
  critic_learning_rate: settings.Positive = 1e-3  # per update; Lillicrap et al.
  # Learner steps at which both rates have fallen to 0, in a line that begins
  # after `anneal_after` of them; None: they stay.
  anneal_updates: settings.Whole | None = None
  anneal_after: settings.Count = 0  # learner steps
  optimizer: optimizers.Name = 'adam'  # 'adam', 'rmsprop' or 'sgd'
  # Of policy and critics together.
  max_gradient_norm: settings.Positive | None = None
  gamma: settings.Fraction = 0.99  # per environment step
  n_step: settings.Whole = 1  # environment steps in one return
  batch_size: settings.Whole = 64  # transitions per update
  reward_scale: settings.Positive = 1.0  # factor on rewards in the loss only
  # Actor steps of uniformly random actions at first.
  random_steps: settings.Count = 0
  normalize_observations: bool = False  # by running mean and variance
  target_update_period: settings.Whole = 1  # learner steps
  target_update_tau: settings.Share = 0.005  # 1 copies the online networks
  prioritized: bool = False  # prioritized replay instead of uniform
  priority_exponent: settings.Fraction = 0.6  # alpha
  importance_exponent: settings.Fraction = 0.4  # beta
  max_replay_size: settings.Items = 100_000  # transitions per member
  # Transitions per member before learning.
  min_replay_size: settings.Items = 1_000

  def __post_init__(self):
    settings.check(self, 'agent')
    why = 'the rate would have no time to fall.'
    settings.ordered(self, 'agent.anneal_after', 'agent.anneal_updates', why)
    low, high = 'agent.min_replay_size', 'agent.max_replay_size'
    settings.ordered(self, low, high, 'learning could never start.', equal=True)


@dataclasses.dataclass(frozen=True)
class Deterministic(Config):
  """What DDPG and D4PG have besides."""

  noise: noise_lib.Kind = 'gaussian'  # or 'ornstein_uhlenbeck'
  sigma: settings.NotNegative = 0.2  # of the noise, in units of [-1, 1]
  # Share that Ornstein-Uhlenbeck noise forgets.
  noise_theta: settings.Fraction = 0.15
  twin_critics: bool = False  # the more pessimistic of two; TD3: True
  # Critic updates for one of the policy; TD3: 2.
  policy_delay: settings.Whole = 1
  # Noise on the target's action; TD3: 0.2.
  smoothing_sigma: settings.NotNegative = 0.0
  smoothing_limit: settings.NotNegative = 0.5  # and its largest value; TD3: 0.5
  # Norm of dQ/da per sample; Acme: 1.
  max_dq_da: settings.Positive | None = None
  serve_target: bool = False  # target networks act and are judged; Acme: True
