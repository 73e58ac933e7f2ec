"""Distributions of actions: a softmax, or a diagonal Gaussian.

Each head has a TensorFlow form for training and a NumPy form for acting. The
behaviour is one number per step: the log-probability of the action under the
policy that chose it, which is all that V-trace needs from the actor.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np
import tensorflow as tf

from murmuration.agents.losses import policy_gradient
from murmuration.agents.losses import value

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Head(Protocol):
  """A distribution over actions, given a network's outputs [..., size]."""

  @property
  def size(self) -> int:
    """Number of network outputs that it needs."""

  def log_prob(self, outputs: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """log pi(a|x), [T, B] from outputs [T, B, size]."""

  def entropy(self, outputs: tf.Tensor) -> tf.Tensor:
    """Entropy, [T, B] from outputs [T, B, size]."""

  def sample(
    self, outputs: np.ndarray, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Actions [..., *action_shape] and their log-probabilities [...]."""

  def mode(self, outputs: np.ndarray) -> np.ndarray:
    """The action used in evaluation, [..., *action_shape]."""

  def operations(self) -> list[list]:
    """`mode` as operations of murmuration/portable.py."""


@dataclasses.dataclass(frozen=True)
class Softmax:
  """Discrete actions; the outputs are logits."""

  size: int  # number of actions

  def log_prob(self, outputs, actions):
    return value.select(tf.nn.log_softmax(outputs), actions)

  def entropy(self, outputs):
    log_pi = tf.nn.log_softmax(outputs)
    return -tf.reduce_sum(tf.exp(log_pi) * log_pi, axis=-1)

  def sample(self, outputs, rng):
    # Methods of ufuncs: NumPy's wrapper functions cost twice as much as the
    # arithmetic on a few numbers.
    logits = outputs - np.maximum.reduce(outputs, axis=-1, keepdims=True)
    sums = np.add.accumulate(np.exp(logits), axis=-1)
    total = sums[..., -1]
    draws = rng.random(total.shape, np.float32) * total
    passed = draws[..., None] >= sums[..., :-1]
    actions = np.add.reduce(passed, axis=-1, dtype=np.int32)
    rows = logits.reshape(-1, self.size)
    chosen = rows[np.arange(len(rows)), actions.reshape(-1)]
    return actions, chosen.reshape(total.shape) - np.log(total)

  def mode(self, outputs):
    return outputs.argmax(axis=-1).astype(np.int32)

  def operations(self):
    return [['argmax']]


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """Continuous actions (docs/agents/impass.md).

  The outputs are means, then raw scales; sigma = softplus(raw) + sigma_min, at
  most sigma_max. Actions are not clipped: the environment does that, and
  log-probabilities are those of the unclipped draws.
  """

  action_size: int  # actions have shape [action_size]
  sigma_min: float = 1e-3
  sigma_max: float | None = 2.0  # None sets no limit
  tanh_mean: bool = False  # whether means pass through tanh, into [-1, 1]

  @property
  def size(self) -> int:
    return 2 * self.action_size

  def scale(self, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and sigma, [..., action_size] each."""
    mean, raw = tf.split(outputs, 2, axis=-1)
    sigma = tf.nn.softplus(raw) + self.sigma_min
    if self.sigma_max is not None:
      sigma = _at_most(sigma, self.sigma_max)
    return tf.tanh(mean) if self.tanh_mean else mean, sigma

  def log_prob(self, outputs, actions):
    return policy_gradient.gaussian_log_prob(*self.scale(outputs), actions)

  def entropy(self, outputs):
    # Of a density: it has no lower bound and may be negative.
    each = tf.math.log(self.scale(outputs)[1]) + (_HALF_LOG_2_PI + 0.5)
    return tf.reduce_sum(each, axis=-1)

  def sample(self, outputs, rng):
    raw = outputs[..., self.action_size :]
    # log(1 + e^raw), without overflow for large raw.
    sigma = np.logaddexp(raw, np.float32(0)) + np.float32(self.sigma_min)
    if self.sigma_max is not None:
      np.minimum(sigma, np.float32(self.sigma_max), out=sigma)
    draws = rng.standard_normal(sigma.shape, np.float32)
    actions = self.mode(outputs) + sigma * draws
    each = -0.5 * draws * draws - np.log(sigma)
    constant = np.float32(self.action_size * _HALF_LOG_2_PI)
    return actions, each.sum(axis=-1) - constant

  def mode(self, outputs):
    mean = outputs[..., : self.action_size]
    return np.tanh(mean) if self.tanh_mean else mean

  def operations(self):
    return [['take', self.action_size], *([['tanh']] if self.tanh_mean else [])]


def _at_most(x: tf.Tensor, limit: float) -> tf.Tensor:
  """min(x, limit), with a gradient that leads back from above the limit.

  The gradient of tf.minimum is 0 there, so a scale that became too large would
  stay so. This one passes steps of gradient descent that lower x, and blocks
  those that raise it.
  """

  @tf.custom_gradient
  def limited(x):
    def gradient(upstream):
      raises = (x >= limit) & (upstream < 0)
      return tf.where(raises, tf.zeros_like(upstream), upstream)

    return tf.minimum(x, tf.cast(limit, x.dtype)), gradient

  return limited(x)
