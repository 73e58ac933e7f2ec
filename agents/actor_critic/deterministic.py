"""What DDPG and D4PG share: a deterministic policy that explores with noise.

The options of TD3 (Fujimoto et al. 2018) are here, so both agents have them:
`twin_critics`, `policy_delay`, `smoothing_sigma`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from murmuration.agents import noise
from murmuration.agents.actor_critic import agent as actor_critic
from murmuration.agents.actor_critic import config as actor_critic_config
from murmuration.agents.losses import policy as policy_losses
from murmuration.environment_loops import environments

# From this share of flat tanhs on the policy hardly learns.
_SATURATED_SHARE = 0.9


class Deterministic(actor_critic.ActorCritic):
  """mu(s), which climbs Q(s, mu(s))."""

  metrics = {
    **actor_critic.ActorCritic.metrics,  # the policy's loss is -Q(s, mu(s))
    'policy_saturation': 'mean',
  }

  def __init__(
    self,
    config: actor_critic_config.Deterministic,
    spec: environments.Spec,
    critic_outputs: int = 1,
  ):
    """See `ActorCritic`; `critic_outputs` are those of one critic."""
    self.config: actor_critic_config.Deterministic = config
    super().__init__(
      config,
      spec,
      critic_outputs=critic_outputs,
      num_critics=2 if config.twin_critics else 1,
    )
    if config.policy_delay > 1:
      self.delayed = np.zeros(self.layout.size, bool)
      self.delayed[self._networks.place('policy')] = True

  def _target_action(self, online, target, o_t, batch):
    a_t = tf.tanh(self._networks.policy(target, o_t))
    config = self.config
    if config.smoothing_sigma:
      draws = policy_losses.noise_like(a_t, batch.o_t, batch.r_t, batch.a_tm1)
      a_t = policy_losses.smoothed(
        a_t, config.smoothing_sigma * draws, config.smoothing_limit
      )
    return a_t, 0.0

  def _policy_loss(self, online, o_tm1, batch):
    nets = self._networks
    preactivation = nets.policy(online, o_tm1)
    a_tm1 = tf.tanh(preactivation)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(a_tm1)
      q = self._values(nets.critics(online, o_tm1, a_tm1, count=1)[0])
    losses = policy_losses.deterministic_policy_gradient(
      a_tm1, tape.gradient(q, a_tm1), self.config.max_dq_da
    )
    saturation = policy_losses.saturation(preactivation)
    return losses, {'policy_loss': -q, 'policy_saturation': saturation}

  def due(self, update: tf.Tensor) -> tf.Tensor:
    return tf.equal((update + 1) % self.config.policy_delay, 0)

  def exploration(self, actor_steps: int) -> float:
    """Sigma of the noise; 1 while actions are random."""
    config = self.config
    return 1.0 if actor_steps < config.random_steps else config.sigma

  def make_exploration(self) -> noise.Noise:
    config = self.config
    if config.noise == 'gaussian':
      return noise.Gaussian(config.sigma)
    return noise.OrnsteinUhlenbeck(config.sigma, config.noise_theta)

  def remarks(self, metrics: Mapping[str, float]) -> list[str]:
    share = metrics.get('policy_saturation', 0.0)
    if share < _SATURATED_SHARE:
      return []
    return [
      f"{share:.0%} of the policy's actions are at the ends of their range, "
      'where tanh is flat: it hardly learns. Set '
      'agent.normalize_observations=True and agent.max_dq_da=1, or lower '
      'agent.policy_learning_rate.'
    ]
