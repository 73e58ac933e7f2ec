"""A2C: the synchronous version of A3C (Mnih et al. 2016), an unroll agent.

Each update uses one unroll of every environment, and actors wait for it before
they act again. Their policy never lags, so nothing is corrected, and V-trace's
targets are the n-step returns of A3C, Algorithm S3: backwards from V(s_{t+T}),
or from a true end of an episode, `ret_t = r_t + gamma ret_{t+1}`. With a
`trace_lambda` below 1 they are those of generalized advantage estimation
(Schulman et al. 2016, arXiv:1506.02438, equation 16).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tensorflow as tf

from murmuration.agents import impala
from murmuration.agents import optimizers
from murmuration.agents import settings


@dataclasses.dataclass(frozen=True)
class Config(impala.Config):
  """A2C. Defaults are A3C's unless a comment gives the paper's value."""

  # Environment steps in one unroll; paper: 5.
  unroll_length: settings.Whole = 5
  # Unrolls per update, one of each environment.
  batch_size: settings.Whole = 16
  learning_rate: settings.Positive = 7e-4  # per update
  optimizer: optimizers.Name = 'rmsprop'  # update rule; paper: 'rmsprop'
  # Epsilon of RMSProp; paper: 0.1.
  rmsprop_epsilon: Annotated[settings.Positive, impala.RMSPROP] = 1e-5
  # Limit on the gradient's norm; None: no limit. OpenAI Baselines: 0.5.
  max_gradient_norm: settings.Positive | None = 0.5
  # Weight of the policy's entropy in the loss; paper: 0.01.
  entropy_cost: settings.NotNegative = 0.01
  # Weight of half the squared error; OpenAI Baselines: 0.5 of the whole.
  baseline_cost: settings.NotNegative = 1.0
  # Off-policy correction; without lag, 'vtrace' gives the same.
  correction: Literal['vtrace', 'none'] = 'none'
  trace_lambda: settings.Fraction = 1.0  # lambda; below 1: GAE; paper: 1

  def __post_init__(self):
    super().__post_init__()
    if self.trace_lambda != 1.0 and self.correction != 'none':
      raise ValueError(
        f'agent.trace_lambda={self.trace_lambda} is that of GAE, which '
        f'corrects nothing: agent.correction={self.correction!r}. Set that to '
        "'none', or use IMPALA."
      )


class A2C(impala.IMPALA):
  """An actor-critic whose actors wait for each of its updates."""

  config: Config

  name = 'a2c'
  on_policy = True  # actors wait until their unrolls are learned
  updates_per_call = 1  # a second one would use data of older parameters

  def credited(self, traced, values):
    if self.config.trace_lambda == 1.0:
      return traced  # equal, up to rounding
    # In GAE lambda also weights the step itself, which V-trace's q_t does not.
    return traced._replace(advantages=traced.vs - tf.stop_gradient(values))
