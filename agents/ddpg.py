"""DDPG: Lillicrap et al. 2016, arXiv:1509.02971; with the options of TD3.

A scalar critic learns by squared TD error and a deterministic policy climbs it.
TD3 (Fujimoto et al. 2018, arXiv:1802.09477) is

  Config(twin_critics=True, policy_delay=2, target_update_period=2,
         smoothing_sigma=0.2)

D4PG is the same with a categorical critic: d4pg.py.
"""

from __future__ import annotations

from murmuration.agents.actor_critic import config as actor_critic_config
from murmuration.agents.actor_critic import deterministic

# Its defaults are small-scale values (docs/agents/ddpg.md).
Config = actor_critic_config.Deterministic


class DDPG(deterministic.Deterministic):
  """Deterministic policy gradient from replay, with scalar critics."""

  name = 'ddpg'
