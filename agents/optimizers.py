"""Optimizers on flat vectors `[P, D]`: P members in a handful of operations.

Each returns the *direction* u of a step `theta <- theta - learning_rate * u`. A
pull or a mix is added to the step and so never passes through the moments (Adam
would rescale it). State is a tuple of tensors that the learner holds; nothing
here has variables. The same equations take NumPy arrays `[D]`: slice_update.py.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

Array = Any  # a tensor or an array
State = tuple[Array, ...]


class Optimizer(Protocol):
  """A pure update rule for P members; state starts as zeros."""

  @property
  def slots(self) -> int:
    """Number of [P, D] tensors of state."""

  def direction(
    self, state: State, gradient: Array, step: Array
  ) -> tuple[State, Array]:
    """The next state and u [P, D]; `step` [P, 1] counts updates from 1.

    Arrays have the shape [D], and `step` is then an int.
    """


def _root(x: Array) -> Array:
  return tf.sqrt(x) if isinstance(x, tf.Tensor) else x**0.5


def _over_root(x: Array, square: Array) -> Array:
  """x / sqrt(square)."""
  if isinstance(x, np.ndarray):
    return x / np.sqrt(square)
  return x * tf.math.rsqrt(square)


@dataclasses.dataclass(frozen=True)
class SGD:
  """Plain gradient descent, u = g."""

  slots: int = dataclasses.field(default=0, init=False)

  def direction(self, state, gradient, step):
    return state, gradient


@dataclasses.dataclass(frozen=True)
class Adam:
  """Adam (Kingma and Ba 2015, Algorithm 1), as in Sonnet.

  u = m_hat / (sqrt(v_hat) + epsilon)
  """

  beta1: float = 0.9
  beta2: float = 0.999
  epsilon: float = 1e-8
  slots: int = dataclasses.field(default=2, init=False)

  def direction(self, state, gradient, step):
    m, v = state
    m = m + (1 - self.beta1) * (gradient - m)
    v = v + (1 - self.beta2) * (gradient * gradient - v)
    if isinstance(step, tf.Tensor):
      step = tf.cast(step, tf.float32)
    # The bias corrections are [P, 1] and cost nothing; folding them into one
    # factor and epsilon saves two passes over [P, D].
    root = _root(1 - self.beta2**step)
    scale = root / (1 - self.beta1**step)
    return (m, v), scale * m / (_root(v) + self.epsilon * root)


@dataclasses.dataclass(frozen=True)
class RMSProp:
  """RMSProp with momentum and centering off, as in Keras and Sonnet.

  v <- decay v + (1 - decay) g^2,  u = g / sqrt(v + epsilon)
  """

  decay: float = 0.99
  epsilon: float = 1e-5
  slots: int = dataclasses.field(default=1, init=False)

  def direction(self, state, gradient, step):
    (v,) = state
    v = v + (1 - self.decay) * (gradient * gradient - v)
    return (v,), _over_root(gradient, v + self.epsilon)


@dataclasses.dataclass(frozen=True)
class Adagrad:
  """Adagrad (Duchi et al. 2011), as in Keras.

  v <- v + g^2 from `initial`,  u = g / sqrt(v + epsilon)
  """

  initial: float = 0.1
  epsilon: float = 1e-7
  slots: int = dataclasses.field(default=1, init=False)

  def direction(self, state, gradient, step):
    (v,) = state  # starts at 0, as all state does; `initial` is added below
    v = v + gradient * gradient
    return (v,), _over_root(gradient, v + self.initial + self.epsilon)


Name = Literal['sgd', 'adam', 'rmsprop', 'adagrad']
_KNOWN: dict[str, Callable[..., Optimizer]] = {
  'sgd': SGD,
  'adam': Adam,
  'rmsprop': RMSProp,
  'adagrad': Adagrad,
}


def make(name: str, **options) -> Optimizer:
  """Makes the optimizer that a config names; ValueError if there is none."""
  if name not in _KNOWN:
    raise ValueError(
      f'optimizer={name!r} is not known. Choose one of {sorted(_KNOWN)}.'
    )
  return _KNOWN[name](**options)


def annealed(done: tf.Tensor, total: float, after: float = 0.0) -> tf.Tensor:
  """Factor [] on learning rates: 1 up to `after`, linear to 0 at `total`."""
  left = (total - tf.cast(done, tf.float32)) / (total - after)
  return tf.clip_by_value(left, 0.0, 1.0)
