"""IMPALA: Espeholt et al. 2018, arXiv:1802.01561; IMPASS as a configuration.

Actors send unrolls of T steps with the log-probabilities of their actions. The
learner uses each unroll once and corrects for policy lag by V-trace. Actions
may be discrete (softmax) or continuous (Gaussian), policies feed-forward, with
an LSTM, or with stacked observations (docs/agents/impass.md).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Annotated, Literal

import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import member_losses
from murmuration.agents import optimizers
from murmuration.agents import settings
from murmuration.agents.losses import policy_gradient
from murmuration.agents.losses import vtrace
from murmuration.agents.unroll import agent as unroll_agent
from murmuration.agents.unroll import network as unroll_network
from murmuration.environment_loops import environments
from murmuration.replay import blocks

# exp(20) is far above any bound on rho, and finite in float32.
_MAX_LOG_RHO = 20.0

RMSPROP = settings.only_with('optimizer', 'rmsprop')
_CORRECTED = settings.only_with('correction', 'vtrace')


@dataclasses.dataclass(frozen=True)
class Config(unroll_agent.Config):
  """IMPALA. Defaults are small-scale values for CartPole-v1.

  Losses are means over the valid steps of a batch, not sums as in the paper;
  learning rates and `rmsprop_epsilon` are chosen for that.
  """

  # Whether policy and value share their hidden layers; IMPASS: False.
  shared_torso: bool = True
  stack: settings.Whole = 1  # newest observations in the input; IMPASS: 4
  # T, environment steps in one unroll; paper: 20 (Atari), 100.
  unroll_length: settings.Whole = 20
  batch_size: settings.Whole = 32  # B, unrolls per update; paper: 32
  # Per update; paper: 6e-4 with RMSProp.
  learning_rate: settings.Positive = 1e-3
  # Update rule (agents/optimizers.py); paper: 'rmsprop'.
  optimizer: optimizers.Name = 'adam'
  # Epsilon of RMSProp; paper: 0.1, for a loss summed over the batch.
  rmsprop_epsilon: Annotated[settings.Positive, RMSPROP] = 0.01
  # Limit on the norm of the whole gradient; None: no limit. Paper: 40.
  max_gradient_norm: settings.Positive | None = 40.0
  # Weight of the policy's entropy in the loss; paper: 0.01 (Atari).
  entropy_cost: settings.NotNegative = 0.01
  # Weight of the value loss, half the squared error; paper: 0.5.
  baseline_cost: settings.NotNegative = 0.5
  # Off-policy correction; 'none' takes every rho and c as 1, without bounds.
  correction: Literal['vtrace', 'none'] = 'vtrace'
  trace_lambda: settings.Fraction = 1.0  # lambda, on the trace; paper: 1
  # Bound on rho in the value targets; None: no bound. Paper: 1.
  rho_bar: Annotated[settings.Positive | None, _CORRECTED] = 1.0
  # Bound on c, the weights of the trace; None: no bound. Paper: 1.
  c_bar: Annotated[settings.Positive | None, _CORRECTED] = 1.0
  # Bound on rho in the policy gradient; None: no bound. Paper: 1.
  pg_rho_bar: Annotated[settings.Positive | None, _CORRECTED] = 1.0
  normalize_advantages: bool = False  # within each batch; IMPASS: True

  def __post_init__(self):
    super().__post_init__()
    bar = math.inf if self.rho_bar is None else self.rho_bar
    if (math.inf if self.c_bar is None else self.c_bar) > bar:
      raise ValueError(
        f'agent.c_bar={self.c_bar} is above rho_bar={self.rho_bar}. Lower '
        'c_bar.'
      )
    if self.normalize_advantages and self.unroll_length * self.batch_size == 1:
      raise ValueError(
        'agent.unroll_length=1 and agent.batch_size=1: normalized, the '
        'advantage of a single step is always 0, so that no policy is learned. '
        'Raise one of them, or set agent.normalize_advantages=False.'
      )


class IMPALA(unroll_agent.UnrollActorCritic):
  """An actor-critic on unrolls, corrected for the lag of its actors."""

  name = 'impala'
  metrics = {
    'loss': 'mean',
    'policy_loss': 'mean',
    'baseline_loss': 'mean',
    'entropy': 'mean',
    'value_mean': 'mean',  # in the environment's units of reward
    'rho_mean': 'mean',  # of pi / mu, not clipped
    'rho_deviation': 'max',  # of |pi / mu - 1|: 0 without lag
    'dropped_sequences': 'mean',  # per update: behaviour was not finite
  }

  def __init__(self, config: Config, spec: environments.Spec):
    super().__init__(config, spec)
    options = {}
    if config.optimizer == 'rmsprop':
      options['epsilon'] = config.rmsprop_epsilon
    self.optimizer = optimizers.make(config.optimizer, **options)
    total = config.anneal_env_steps
    if total is not None:
      steps = config.unroll_length * config.batch_size
      self.rate_end = base.RateEnd(
        total / steps, 'agent.anneal_env_steps', total, env_steps=steps
      )

  def loss(
    self,
    variables: Sequence[tf.Tensor],
    target_variables: Sequence[tf.Tensor],
    batch: blocks.Block,
    importance: tf.Tensor | None = None,
  ) -> base.LossOutput:
    """The loss of docs/agents/impala.md for blocks [b, ...].

    Means are over valid steps. A sequence whose behaviour is not finite is left
    out as a whole.
    """
    config, major = self.config, unroll_network.time_major
    last = major(batch.last)
    discount = major(batch.discount)
    behaviour = major(batch.behaviour)[..., 0]
    sound = tf.reduce_all(tf.math.is_finite(behaviour), axis=0)
    valid = major(batch.valid) & sound
    mask = tf.cast(valid, tf.float32)
    truncated = last & (discount > 0) & valid
    unrolled = self.unroll(variables, batch, truncated)

    log_pi = self.head.log_prob(unrolled.policy, self.actions(batch))
    log_rho = tf.clip_by_value(
      tf.stop_gradient(log_pi) - behaviour, -_MAX_LOG_RHO, _MAX_LOG_RHO
    )
    rho = tf.where(valid, tf.exp(log_rho), 1.0)
    bounds = config.rho_bar, config.c_bar, config.pg_rho_bar
    if config.correction == 'none':
      log_rho, bounds = tf.zeros_like(log_rho), (None, None, None)
    values = unrolled.values
    traced = vtrace.vtrace(
      tf.where(valid, log_rho, -math.inf),
      config.reward_scale * major(batch.reward),
      config.gamma * discount,
      last,
      values[:-1],
      vtrace.successor_values(values, unrolled.final_values, truncated),
      config.trace_lambda,
      *bounds,
    )
    traced = self.credited(traced, values[:-1])
    for name, x in traced._asdict().items():
      member_losses.check_shape(
        f'`{name}` of what {type(self).__name__}.credited returns, [T, B],',
        x,
        mask.shape,
      )
    advantages = traced.pg_advantages
    if config.normalize_advantages:
      # Moments under pi, with rho outside. Normalising the product would
      # subtract a mean that is no baseline: off policy it has a gradient.
      advantages = traced.pg_rhos * policy_gradient.normalise(
        traced.advantages, mask * traced.pg_rhos
      )
    policy_loss = policy_gradient.policy_gradient(log_pi, advantages, mask)
    baseline_loss = policy_gradient.baseline(values[:-1], traced.vs, mask)
    entropy = policy_gradient.masked_mean(
      self.head.entropy(unrolled.policy), mask
    )
    loss = (
      policy_loss
      + config.baseline_cost * baseline_loss
      - config.entropy_cost * entropy
    )
    metrics = {
      'loss': loss,
      'policy_loss': policy_loss,
      'baseline_loss': baseline_loss,
      'entropy': entropy,
      'value_mean': policy_gradient.masked_mean(values[:-1], mask)
      / config.reward_scale,
      'rho_mean': policy_gradient.masked_mean(rho, mask),
      'rho_deviation': tf.reduce_max(tf.abs(rho - 1.0)),
      'dropped_sequences': tf.reduce_sum(tf.cast(~sound, tf.float32)),
      **self.spread(unrolled.policy, mask),
    }
    return base.LossOutput(
      loss,
      None,  # a queue has no priorities
      metrics,
      self.statistics(variables, unrolled.observations, mask),
    )

  def credited(self, traced: vtrace.VTrace, values: tf.Tensor) -> vtrace.VTrace:
    """Returns `traced` with the advantages that weight the policy gradient.

    All of it is [T, B], as are the `values`.
    """
    return traced
