"""DDPG: Lillicrap et al. 2016, arXiv:1509.02971; with the options of TD3.

A scalar critic learns by squared TD error and a deterministic policy climbs it.
TD3 (Fujimoto et al. 2018, arXiv:1802.09477) is

  Config(twin_critics=True, policy_delay=2, target_update_period=2,
         smoothing_sigma=0.2)

D4PG is the same with a categorical critic: d4pg.py.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from agents.actor_critic import agent as actor_critic
from agents.actor_critic import config as actor_critic_config
from agents.losses import value
from environment_loops import environments


@dataclasses.dataclass(frozen=True)
class Config(actor_critic_config.Config):
  """DDPG. Defaults are small-scale values (docs/agents/ddpg.md)."""


class DDPG(actor_critic.ActorCritic):
  """Deterministic policy gradient from replay, with scalar critics."""

  name = 'ddpg'

  def __init__(self, config: Config, spec: environments.Spec):
    """Makes the agent for one environment.

    Raises:
      environments.EnvironmentRefused: discrete or unbounded actions.
    """
    super().__init__(config, spec, critic_outputs=1)

  def _values(self, outputs):
    return tf.squeeze(outputs, axis=-1)

  def _critic_loss(self, outputs, target_outputs, r_t, discount_t):
    # Fujimoto et al., Eq. 10: the smaller of two is less often too large.
    q_t = tf.reduce_min(tf.stack(target_outputs), axis=0)
    target = tf.stop_gradient(r_t + discount_t * self._values(q_t))
    q_tm1 = [self._values(o) for o in outputs]
    errors = [target - q for q in q_tm1]
    size = tf.add_n([tf.abs(e) for e in errors]) / len(errors)
    return actor_critic.CriticLoss(
      tf.add_n([value.squared(e) for e in errors]),
      size,
      {
        'q_mean': q_tm1[0],
        'td_error': size,
        'target_max': target,
        'target_min': target,
      },
    )
