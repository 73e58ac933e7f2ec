"""What agents that sample replay share: their settings and attributes.

Value agents (value_agent.py) and actor-critics (actor_critic/) build on it.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from murmuration.agents import base
from murmuration.agents import optimizers
from murmuration.agents import settings
from murmuration.environment_loops import environments

PRIORITIZED = settings.only_with('prioritized', True)


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings of replay, returns, target networks and the optimizer."""

  # Learner steps at which the learning rates reach 0, after a linear fall from
  # step `anneal_after` on; None: they are constant.
  anneal_updates: settings.Whole | None = None
  # Learner steps before the rates fall.
  anneal_after: Annotated[
    settings.Count, settings.only_with('anneal_updates')
  ] = 0
  optimizer: optimizers.Name = 'adam'  # update rule (agents/optimizers.py)
  # Limit on the norm of the whole gradient; None: no limit. Ape-X: 40.
  max_gradient_norm: settings.Positive | None = None
  gamma: settings.Fraction = 0.99  # discount per environment step
  n_step: settings.Whole = 1  # environment steps in one return
  batch_size: settings.Whole = 64  # transitions per update and member
  reward_scale: settings.Positive = 1.0  # factor on rewards, in the loss only
  target_update_period: settings.Whole = 1  # learner steps between updates
  # Weight of the online networks in an update of the targets; 1 copies them.
  target_update_tau: settings.Share = 1.0
  # Whether replay is sampled by TD error; False: uniformly.
  prioritized: bool = False
  # Exponent alpha of the priorities.
  priority_exponent: Annotated[settings.Fraction, PRIORITIZED] = 0.6
  # Exponent beta of the importance weights.
  importance_exponent: Annotated[settings.Fraction, PRIORITIZED] = 0.4
  max_replay_size: settings.Items = 100_000  # transitions per member, at most
  # Transitions per member in replay before learning begins.
  min_replay_size: settings.Items = 1_000

  def __post_init__(self):
    settings.check(self, 'agent')
    why = 'the rate would have no time to fall.'
    settings.ordered(self, 'agent.anneal_after', 'agent.anneal_updates', why)
    low, high = 'agent.min_replay_size', 'agent.max_replay_size'
    settings.ordered(self, low, high, 'learning could never start.', equal=True)


class ReplayAgent(base.Agent):
  """Learns from transitions in replay, with target networks."""

  def __init__(self, config: Config, spec: environments.Spec):
    self.config = config
    self.spec = spec
    self.gamma = config.gamma
    self.n_step = config.n_step
    self.batch_size = config.batch_size
    self.max_gradient_norm = config.max_gradient_norm
    self.optimizer = optimizers.make(config.optimizer)
    self.target_update = base.TargetUpdate(
      config.target_update_period, config.target_update_tau
    )
    if config.prioritized:
      self.priority_exponent = config.priority_exponent
      self.importance_exponent = config.importance_exponent
    if config.anneal_updates is not None:
      self.rate_end = base.RateEnd(
        config.anneal_updates,
        'agent.anneal_updates',
        config.anneal_updates,
        config.anneal_after,
      )
