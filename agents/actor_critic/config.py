"""The numbers that actor-critic agents share."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from murmuration.agents import noise as noise_lib
from murmuration.agents import replay_agent
from murmuration.agents import settings
from murmuration.agents.networks import conv


@dataclasses.dataclass(frozen=True)
class Config(replay_agent.Config):
  """What all of them have. Defaults are DDPG's (docs/agents/ddpg.md)."""

  # 'mlp', or what encodes images, one of networks/conv.py; 'auto': what fits.
  network: conv.Name = 'auto'
  policy_sizes: settings.Sizes = (64, 64)  # units; of images, after the encoder
  critic_sizes: settings.Sizes = (64, 64)  # units; likewise
  activation: Literal['relu', 'tanh'] = 'relu'  # 'relu' or 'tanh'
  policy_learning_rate: settings.Positive = 1e-4  # per update; Lillicrap et al.
  critic_learning_rate: settings.Positive = 1e-3  # per update; Lillicrap et al.
  # Actor steps of uniformly random actions at first.
  random_steps: settings.Count = 0
  normalize_observations: bool = False  # by running mean and variance
  target_update_tau: settings.Share = 0.005  # 1 copies the online networks


@dataclasses.dataclass(frozen=True)
class Deterministic(Config):
  """What DDPG and D4PG have besides."""

  noise: noise_lib.Kind = 'gaussian'  # or 'ornstein_uhlenbeck'
  sigma: settings.NotNegative = 0.2  # of the noise, in units of [-1, 1]
  # Share that Ornstein-Uhlenbeck noise forgets.
  noise_theta: Annotated[
    settings.Share, settings.only_with('noise', 'ornstein_uhlenbeck')
  ] = 0.15
  twin_critics: bool = False  # the more pessimistic of two; TD3: True
  # Critic updates for one of the policy; TD3: 2.
  policy_delay: settings.Whole = 1
  # Noise on the target's action; TD3: 0.2.
  smoothing_sigma: settings.NotNegative = 0.0
  # And its largest value; TD3: 0.5.
  smoothing_limit: Annotated[
    settings.NotNegative, settings.only_with('smoothing_sigma')
  ] = 0.5
  # Norm of dQ/da per sample; Acme: 1.
  max_dq_da: settings.Positive | None = None
