"""PPO: Schulman et al. 2017, arXiv:1707.06347, with GAE (arXiv:1506.02438).

Actors send unrolls with the log-probabilities of their actions. The learner
processes a rollout of several unrolls in one call: it estimates advantages
once, then makes epochs of minibatch updates of the clipped surrogate. Actions
may be discrete (softmax) or continuous (Gaussian), policies feed-forward or
recurrent (docs/agents/ppo.md).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Annotated

import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import optimizers
from murmuration.agents import settings
from murmuration.agents.losses import gae
from murmuration.agents.losses import policy_gradient
from murmuration.agents.losses import ppo as losses
from murmuration.agents.losses import vtrace
from murmuration.agents.unroll import agent as unroll_agent
from murmuration.agents.unroll import network as unroll_network
from murmuration.agents.unroll import rollouts
from murmuration.environment_loops import environments
from murmuration.replay import blocks

# The updates of a rollout stop once the divergence exceeds this many targets.
_KL_MARGIN = 1.5
_MOST_UPDATES = 10_000  # per rollout; the limit of run.updates_per_call


@dataclasses.dataclass(frozen=True)
class Config(unroll_agent.Config):
  """PPO. Defaults are small-scale values for CartPole-v1."""

  # Whether policy and value share their hidden layers.
  shared_torso: bool = False
  # Units of the LSTM, which needs a shared torso; 0: no LSTM.
  lstm_size: settings.Count = 0
  # Environment steps of all actors between updates; paper: 2048.
  rollout_steps: settings.Whole = 512
  unroll_length: settings.Whole = 64  # T, environment steps in one unroll
  epochs: settings.Whole = 10  # passes over each rollout; paper: 10
  batch_size: settings.Whole = 64  # M, steps in one minibatch; paper: 64
  learning_rate: settings.Positive = 3e-4  # per update, Adam; paper: 3e-4
  adam_epsilon: settings.Positive = 1e-5  # epsilon; OpenAI Baselines: 1e-5
  # Limit on the gradient's norm; None: no limit. OpenAI Baselines: 0.5.
  max_gradient_norm: settings.Positive | None = 0.5
  gae_lambda: settings.Fraction = 0.95  # lambda, on the trace; paper: 0.95
  # Epsilon, the bound on |ratio - 1|; paper: 0.2.
  clip: Annotated[
    float, settings.between(0, 1, 'above 0 and below 1', '()')
  ] = 0.2
  # Bound on the change of a value, in scaled reward; None: no bound.
  value_clip: settings.Positive | None = None
  value_cost: settings.NotNegative = 0.5  # c_v, weight of the squared error
  # c_e, weight of the entropy; presets with continuous actions set 0.
  entropy_cost: settings.NotNegative = 0.01
  normalize_advantages: bool = True  # within each minibatch
  # KL divergence from the policy that acted; above 1.5 times this value, the
  # rest of a rollout's updates is skipped. None: never. Usual: 0.01 to 0.03.
  target_kl: settings.Positive | None = None

  def __post_init__(self):
    super().__post_init__()
    if self.rollout_steps % self.batch_size:
      raise ValueError(
        f'agent.rollout_steps={self.rollout_steps} is no whole number of '
        f'minibatches of {self.batch_size} steps. Set agent.batch_size to a '
        'divisor.'
      )
    if self.rollout_steps % self.unroll_length:
      raise ValueError(
        f'agent.rollout_steps={self.rollout_steps} is no whole number of '
        f'unrolls of {self.unroll_length} steps. Set agent.unroll_length to a '
        'divisor.'
      )
    if self.normalize_advantages and self.batch_size == 1:
      raise ValueError(
        'agent.batch_size=1: normalized, the advantage of a single step is '
        'always 0, so that no policy is learned. Set agent.batch_size to at '
        'least 2, or agent.normalize_advantages=False.'
      )
    updates = self.updates_per_rollout
    if updates > _MOST_UPDATES:
      raise ValueError(
        f'agent.epochs={self.epochs} of agent.rollout_steps='
        f'{self.rollout_steps} in minibatches of agent.batch_size='
        f'{self.batch_size} are {updates:,} updates of one rollout; at most '
        f'{_MOST_UPDATES:,} are made of one. Lower agent.epochs or '
        'agent.rollout_steps, or raise agent.batch_size.'
      )
    if self.in_order and self.batch_size % self.unroll_length:
      raise ValueError(
        f'agent.batch_size={self.batch_size} is no whole number of sequences '
        f'of {self.unroll_length} steps, which stay together because the '
        'policy remembers (lstm_size or stack). Make it a multiple of '
        'agent.unroll_length.'
      )

  @property
  def in_order(self) -> bool:
    """Whether the policy has memory, so that sequences must stay in order."""
    return self.lstm_size > 0 or self.stack > 1

  @property
  def updates_per_rollout(self) -> int:
    return self.epochs * self.rollout_steps // self.batch_size


class PPO(unroll_agent.UnrollActorCritic):
  """An actor-critic whose policy stays near the one that acted."""

  name = 'ppo'
  on_policy = True  # actors wait until their rollout is learned
  metrics = {
    'loss': 'mean',
    'policy_loss': 'mean',
    'value_loss': 'mean',
    'entropy': 'mean',
    'value_mean': 'mean',  # in the environment's units of reward
    'explained_variance': 'mean',  # of returns, by values before the updates
    'kl': 'mean',  # from the policy that acted
    'clip_fraction': 'mean',  # of steps whose ratio is beyond the clip
    'stopped_updates': 'mean',  # share that moved nothing, for target_kl
    'lag_deviation': 'mean',  # |pi / mu - 1| before the updates: 0 without lag
    'dropped_steps': 'mean',  # per update: all that the mask leaves out
  }

  def __init__(self, config: Config, spec: environments.Spec):
    super().__init__(config, spec)
    self.updates_per_call = config.updates_per_rollout
    self.optimizer = optimizers.make('adam', epsilon=config.adam_epsilon)
    total = config.anneal_env_steps
    if total is not None:
      self.rate_end = base.RateEnd(
        math.ceil(total / config.rollout_steps) * self.updates_per_call,
        'agent.anneal_env_steps',
        total,
        env_steps=config.rollout_steps / self.updates_per_call,
      )

  def feed(
    self, num_envs: int, batch_size: int | None = None, seed: int = 0
  ) -> rollouts.Rollouts:
    """Returns what turns blocks of `num_envs` environments into minibatches."""
    config = self.config
    return rollouts.Rollouts(
      self.layout,
      self.estimate,
      config.rollout_steps,
      config.unroll_length,
      num_envs,
      batch_size or config.batch_size,
      config.epochs,
      config.in_order,
      self.images,
      seed,
    )

  def estimate(
    self,
    variables: Sequence[tf.Tensor],
    batch: blocks.Block,
    joined: int = 1,
  ) -> rollouts.Estimates:
    """Advantages, returns and statistics of blocks [b, ...].

    Of the blocks, `joined` at a time follow one another: a trace goes on from
    one to the next. A sequence whose behaviour is not finite is left out as a
    whole.
    """
    config, major = self.config, unroll_network.time_major
    last = major(batch.last)
    discount = major(batch.discount)
    behaviour = major(batch.behaviour)[..., 0]
    sound = tf.reduce_all(tf.math.is_finite(behaviour), axis=0)
    valid = major(batch.valid) & sound
    truncated = last & (discount > 0) & valid
    unrolled = self.unroll(variables, batch, truncated)
    values = unrolled.values
    following = vtrace.successor_values(
      values, unrolled.final_values, truncated
    )

    def whole(x: tf.Tensor) -> tf.Tensor:
      return rollouts.joined(x, joined, batch)

    traced = gae.gae(
      whole(config.reward_scale * major(batch.reward)),
      whole(config.gamma * discount),
      whole(last),
      whole(values[:-1]),
      whole(following),
      config.gae_lambda,
      whole(valid),
    )
    found = gae.GAE(*(rollouts.parted(x, joined, batch) for x in traced))
    mask = tf.cast(valid, tf.float32)
    log_pi = self.head.log_prob(unrolled.policy, self.actions(batch))
    ratio = losses.clipped_surrogate(
      log_pi, tf.where(valid, behaviour, log_pi), found.advantages, config.clip
    ).ratio
    return rollouts.Estimates(
      found.advantages,
      found.returns,
      values[:-1],
      mask,
      policy_gradient.masked_mean(tf.abs(ratio - 1.0), mask),
      self.statistics(variables, unrolled.observations, mask),
    )

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: rollouts.Minibatch,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """The loss L of docs/agents/ppo.md over a minibatch's valid steps."""
    config, major = self.config, unroll_network.time_major
    block = batch.block
    mask = major(batch.mask)
    mean = functools.partial(policy_gradient.masked_mean, mask=mask)
    unrolled = self.unroll(variables, block, tf.zeros_like(major(block.last)))
    values = unrolled.values[:-1]
    log_pi = self.head.log_prob(unrolled.policy, self.actions(block))
    log_mu = tf.where(mask > 0, major(block.behaviour)[..., 0], log_pi)
    advantages, returns = major(batch.advantages), major(batch.returns)
    if config.normalize_advantages:
      advantages = policy_gradient.normalise(advantages, mask)
    ratio, surrogate = losses.clipped_surrogate(
      log_pi, log_mu, advantages, config.clip
    )
    policy_loss = -mean(surrogate)
    value_loss = mean(
      losses.value_loss(values, returns, major(batch.values), config.value_clip)
    )
    entropy = mean(self.head.entropy(unrolled.policy))
    loss = (
      policy_loss
      + config.value_cost * value_loss
      - config.entropy_cost * entropy
    )
    kl = mean(losses.divergence(ratio))
    stopped = None
    if config.target_kl is not None:
      stopped = kl > _KL_MARGIN * config.target_kl
    beyond = tf.cast(tf.abs(ratio - 1.0) > config.clip, tf.float32)
    metrics = {
      'loss': loss,
      'policy_loss': policy_loss,
      'value_loss': value_loss,
      'entropy': entropy,
      'value_mean': mean(values) / config.reward_scale,
      'explained_variance': self._explained(batch, mask),
      'kl': kl,
      'clip_fraction': mean(beyond),
      'lag_deviation': batch.lag,
      'dropped_steps': tf.reduce_sum(1.0 - mask),
      **self.spread(unrolled.policy, mask),
    }
    return base.LossOutput(
      loss,
      None,  # a queue has no priorities
      metrics,
      self._statistics(variables, batch),
      stopped,
    )

  def _explained(self, batch: rollouts.Minibatch, mask: tf.Tensor) -> tf.Tensor:
    """1 - Var(ret - V) / Var(ret), [], with V before the updates.

    0 where all returns are equal: there is nothing to explain.
    """
    returns, values = map(
      unroll_network.time_major, (batch.returns, batch.values)
    )

    def variance(x: tf.Tensor) -> tf.Tensor:
      mean = policy_gradient.masked_mean(x, mask)
      return policy_gradient.masked_mean(tf.square(x - mean), mask)

    whole = variance(returns)
    return tf.math.divide_no_nan(whole - variance(returns - values), whole)

  def _statistics(
    self, variables: Sequence[tf.Tensor], batch: rollouts.Minibatch
  ) -> dict[str, tf.Tensor]:
    """Statistics of the normalizer, which move once, after the last update.

    If they moved with each update, the policy would change under the ratio, and
    each observation would count once per epoch.
    """
    if not batch.statistics:
      return {}
    now = dict(zip((v.name for v in self.layout.variables), variables))
    return {
      name: tf.where(batch.closing, new, tf.stop_gradient(now[name]))
      for name, new in batch.statistics.items()
    }

  def rate_factor(self, update: tf.Tensor) -> tf.Tensor | None:
    """Falls linearly from 1 to 0 over `anneal_env_steps`, once per rollout."""
    total = self.config.anneal_env_steps
    if total is None:
      return None
    made = tf.cast(update // self.updates_per_call, tf.float32)
    return tf.maximum(1.0 - made * (self.config.rollout_steps / total), 0.0)
