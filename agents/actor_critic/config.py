"""The numbers that DDPG and D4PG share."""

from __future__ import annotations

import dataclasses
import math

from agents import checks
from agents import noise
from agents import optimizers


@dataclasses.dataclass(frozen=True)
class Config:
  """What both agents have. Defaults: DDPG's, small scale (specs/pso.md) [R]."""

  policy_sizes: tuple[int, ...] = (64, 64)  # units
  critic_sizes: tuple[int, ...] = (64, 64)  # units
  activation: str = 'relu'  # 'relu' or 'tanh'
  policy_learning_rate: float = 1e-4  # per update; Lillicrap et al.
  critic_learning_rate: float = 1e-3  # per update; Lillicrap et al.
  # Learner steps at which both rates have fallen to 0, in a line that begins
  # after `anneal_after` of them; None: they stay.
  anneal_updates: int | None = None
  anneal_after: int = 0
  optimizer: str = 'adam'  # 'adam', 'rmsprop' or 'sgd'
  max_gradient_norm: float | None = None  # of policy and critics together
  gamma: float = 0.99  # per environment step
  n_step: int = 1  # environment steps in one return
  batch_size: int = 64  # transitions per update
  reward_scale: float = 1.0  # factor on rewards in the loss only
  noise: str = 'gaussian'  # or 'ornstein_uhlenbeck'
  sigma: float = 0.2  # of the noise, in units of [-1, 1]
  noise_theta: float = 0.15  # share that Ornstein-Uhlenbeck noise forgets
  random_steps: int = 0  # actor steps of uniformly random actions at first
  twin_critics: bool = False  # the more pessimistic of two; TD3: True
  policy_delay: int = 1  # critic updates for one of the policy; TD3: 2
  smoothing_sigma: float = 0.0  # noise on the target's action; TD3: 0.2
  smoothing_limit: float = 0.5  # and its largest value; TD3: 0.5
  max_dq_da: float | None = None  # norm of dQ/da per sample; Acme: 1
  normalize_observations: bool = False  # by running mean and variance
  target_update_period: int = 1  # learner steps
  target_update_tau: float = 0.005  # 1 copies the online networks
  serve_target: bool = False  # target networks act and are judged; Acme: True
  prioritized: bool = False  # prioritized replay instead of uniform
  priority_exponent: float = 0.6  # alpha
  importance_exponent: float = 0.4  # beta
  max_replay_size: int = 100_000  # transitions per member
  min_replay_size: int = 1_000  # transitions per member before learning

  def __post_init__(self):
    whole = (
      'n_step',
      'batch_size',
      'policy_delay',
      'target_update_period',
      'max_replay_size',
      'min_replay_size',
    )
    checks.whole(self, 'agent', whole)
    positive = (
      'policy_learning_rate',
      'critic_learning_rate',
      'max_gradient_norm',
      'reward_scale',
      'max_dq_da',
    )
    checks.positive(self, 'agent', positive)
    checks.annealing(self, 'agent')
    for name in (
      'gamma',
      'noise_theta',
      'target_update_tau',
      'priority_exponent',
      'importance_exponent',
    ):
      number = getattr(self, name)
      if not 0 <= number <= 1:
        raise ValueError(f'agent.{name}={number} must be between 0 and 1.')
    for name in ('sigma', 'smoothing_sigma', 'smoothing_limit', 'random_steps'):
      number = getattr(self, name)
      if not (math.isfinite(number) and number >= 0):
        raise ValueError(
          f'agent.{name}={number} must be a number that is not negative.'
        )
    for name in ('policy_sizes', 'critic_sizes'):
      sizes = getattr(self, name)
      if not sizes or min(sizes) < 1:
        raise ValueError(f'agent.{name}={sizes} must be positive sizes.')
    if self.target_update_tau == 0:
      raise ValueError(
        'agent.target_update_tau=0 would never move the target networks. '
        'Use 1 to copy them every target_update_period updates.'
      )
    if self.min_replay_size > self.max_replay_size:
      raise ValueError(
        f'agent.min_replay_size={self.min_replay_size} is above '
        f'max_replay_size={self.max_replay_size}: learning could never start.'
      )
    noise.make(self.noise, self.sigma, self.noise_theta)
    optimizers.make(self.optimizer)
