"""Feeds turn samples of replay into the batches of an agent's loss.

A learner makes U updates for P members in one TensorFlow call. In the graph, a
feed calls `arrange` once for the whole call, and `unpack` once per update.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import tensorflow as tf

from murmuration.replay import packing


class Feed(Protocol):
  """Turns a sample into the batches of U updates; traced into the learner."""

  def arrange(
    self, sample: Any, updates: int, members: int, theta: tf.Tensor
  ) -> Any:
    """A call's sample as a nest of tensors with leading axes [U, P].

    `theta` [P, D] are the members' parameters before the first update.
    """

  def unpack(self, batch: Any) -> Any:
    """One update's share, leading axis [P], in the form the loss takes."""


@dataclasses.dataclass(frozen=True)
class Transitions:
  """Packed transitions, each its own item.

  The sample is float32 (or bytes) [U * B, P, W], or [U * B, W] for one member;
  the loss sees a `packing.Transition` of [P, B, ...].
  """

  layout: packing.TransitionLayout
  batch_size: int  # B

  def arrange(self, sample, updates, members, theta=None):
    width = sample.shape[-1]
    split = tf.reshape(sample, (updates, self.batch_size, members, width))
    # One transpose for all updates together.
    return tf.transpose(split, (0, 2, 1, 3))

  def unpack(self, batch):
    return self.layout.unpack(batch)
