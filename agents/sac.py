"""SAC: Haarnoja et al. 2018, arXiv:1812.05905, with a learned temperature.

A Gaussian policy through a tanh climbs two scalar critics and its own entropy,
whose price alpha follows a target. Replay, critics, their targets and the loss
that holds all parts are those of actor_critic/agent.py.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import tensorflow as tf

from murmuration.agents import settings
from murmuration.agents.actor_critic import agent as actor_critic
from murmuration.agents.actor_critic import config as actor_critic_config
from murmuration.agents.losses import policy as policy_losses
from murmuration.agents.losses import soft
from murmuration.environment_loops import environments

# Of log sigma, as SB3 and the authors' code have them; the paper has none.
LOG_SIGMA_MIN, LOG_SIGMA_MAX = -20.0, 2.0


@dataclasses.dataclass(frozen=True)
class Config(actor_critic_config.Config):
  """SAC. Defaults are the paper's (Appendix D) and SB3's, but for replay."""

  policy_sizes: settings.Sizes = (256, 256)  # units; paper
  critic_sizes: settings.Sizes = (256, 256)  # units; paper
  policy_learning_rate: settings.Positive = 3e-4  # per update; paper
  critic_learning_rate: settings.Positive = 3e-4  # per update; paper
  temperature_learning_rate: settings.Positive = 3e-4  # per update; paper
  batch_size: settings.Whole = 256  # transitions per update; paper
  first_temperature: settings.Positive = 1.0  # alpha at the start; SB3
  # Nats; None: minus the numbers in an action, as the paper. Of actions that
  # are uniform in [-1, 1] each number has 0.69.
  target_entropy: float | None = None
  random_steps: settings.Count = 100  # actor steps; SB3's learning_starts
  min_replay_size: settings.Items = 100  # transitions; SB3's, likewise


class SAC(actor_critic.ActorCritic):
  """A random policy that is as random as it can afford to be."""

  name = 'sac'
  metrics = {
    **actor_critic.ActorCritic.metrics,  # the policy's is Eq. 9 in the mean
    'entropy': 'mean',  # of the policy, nats, by its samples
    'temperature': 'mean',  # alpha
  }
  rate_settings = (
    *actor_critic.ActorCritic.rate_settings,
    'agent.temperature_learning_rate',
  )

  def __init__(self, config: Config, spec: environments.Spec):
    self.config: Config = config
    super().__init__(
      config,
      spec,
      num_critics=2,
      policy_outputs=2,
      temperature=config.first_temperature,
    )
    self._set_rate('temperature', config.temperature_learning_rate)
    wanted = config.target_entropy
    size = math.prod(spec.action_shape)
    self.target_entropy = -float(size) if wanted is None else wanted

  def _sample(self, online, observation, *seeds):
    """Actions [B, A] of the online policy, log pi [B], and log alpha [1]."""
    mean, log_sigma = tf.split(
      self._networks.policy(online, observation), 2, axis=-1
    )
    action, log_pi = soft.squashed_gaussian(
      mean,
      tf.clip_by_value(log_sigma, LOG_SIGMA_MIN, LOG_SIGMA_MAX),
      policy_losses.noise_like(mean, *seeds),
    )
    return action, log_pi, online['temperature'][0]

  def _target_action(self, online, target, o_t, batch):
    """Eq. 3: V(s') = Q'(s', a') - alpha log pi(a'|s'), of the online policy."""
    a_t, log_pi, log_alpha = self._sample(
      online, o_t, batch.o_t, batch.r_t, batch.a_tm1
    )
    return a_t, -tf.exp(log_alpha) * log_pi

  def _policy_loss(self, online, o_tm1, batch):
    """Eq. 9: alpha log pi(a|s) - Q(s, a), and Eq. 18, of the same samples."""
    action, log_pi, log_alpha = self._sample(
      online, o_tm1, batch.o_tm1, batch.a_tm1
    )
    # The critics learn from their own loss only.
    fixed = {
      part: [tf.stop_gradient(v) for v in variables]
      for part, variables in online.items()
    }
    outputs = self._networks.critics(fixed, o_tm1, action)
    q = self._values(tf.reduce_min(tf.stack(outputs), axis=0))
    alpha = tf.stop_gradient(tf.exp(log_alpha))
    policy = alpha * log_pi - q
    price = soft.temperature(log_alpha, log_pi, self.target_entropy)
    return policy + price, {
      'policy_loss': policy,
      'entropy': -log_pi,
      'temperature': alpha * tf.ones_like(q),
    }

  def exploration(self, actor_steps: int) -> float:
    """1 while actions are random; then the policy is so by itself."""
    return float(actor_steps < self.config.random_steps)

  def acting(self, theta: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """Means before the tanh, then log sigma: [P, K, 2 A]."""
    return self._networks.outputs(self.prepared(theta), observation)

  def make_exploration(self) -> _Sampling:
    return _Sampling()


class _Sampling(actor_critic.Exploration):
  """Actions of the policy itself."""

  def __call__(self, outputs, rng):
    mean, log_sigma = np.split(outputs, 2, axis=-1)
    sigma = np.exp(np.clip(log_sigma, LOG_SIGMA_MIN, LOG_SIGMA_MAX))
    return np.tanh(mean + sigma * rng.standard_normal(mean.shape, np.float32))
