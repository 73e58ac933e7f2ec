"""DDPG: Lillicrap et al. 2016, arXiv:1509.02971; with the options of TD3.

A scalar critic learns by squared TD error and a deterministic policy climbs it.
TD3 (Fujimoto et al. 2018, arXiv:1802.09477) is

  Config(twin_critics=True, policy_delay=2, target_update_period=2,
         smoothing_sigma=0.2)

D4PG is the same with a categorical critic: d4pg.py.
"""

from __future__ import annotations

import dataclasses

from agents.actor_critic import config as actor_critic_config
from agents.actor_critic import deterministic
from environment_loops import environments


@dataclasses.dataclass(frozen=True)
class Config(actor_critic_config.Deterministic):
  """DDPG. Defaults are small-scale values (docs/agents/ddpg.md)."""


class DDPG(deterministic.Deterministic):
  """Deterministic policy gradient from replay, with scalar critics."""

  name = 'ddpg'

  def __init__(self, config: Config, spec: environments.Spec):
    """Makes the agent for one environment.

    Raises:
      environments.EnvironmentRefused: discrete or unbounded actions.
    """
    super().__init__(config, spec)
