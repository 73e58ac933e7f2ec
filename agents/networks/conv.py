"""Convolutional networks of the DQN papers, in the form of networks.py.

It acts in TensorFlow: there, unlike for an MLP, the mathematics is dearer than
the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from agents.networks import mlp


class _Size(NamedTuple):
  layers: tuple[tuple[int, int, int], ...]  # channels, kernel, stride
  head: int  # units; with dueling, of each stream


# 'nature': Mnih et al. 2015, methods. 'shallow': Mnih et al. 2013, section 5.1,
# and the shallow model of Espeholt et al. 2018; a third of the multiplications.
KINDS = {
  'nature': _Size(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
  'shallow': _Size(((16, 8, 4), (32, 4, 2)), 256),
}


@dataclasses.dataclass(frozen=True)
class ConvNet:
  """Convolutions and a head on bytes, channels last, scaled by 1/255.

  Attributes:
    observation_shape: (height, width, channels), (84, 84, 4) for Atari.
    output_size: number of actions.
    dueling: whether the head has a value and an advantage stream.
    kind: of `KINDS`.
    name: prefix of the variables' names.
  """

  observation_shape: tuple[int, ...]
  output_size: int
  dueling: bool = False
  kind: str = 'nature'
  name: str = 'conv'

  def __post_init__(self):
    shape = self.observation_shape
    least = 1
    for _, kernel, stride in reversed(self._layers):
      least = (least - 1) * stride + kernel
    if len(shape) != 3 or min(shape[:2]) < least:
      raise ValueError(
        f'The convolutions need images (height, width, channels) of at least '
        f'{least} x {least}, got observations of shape {shape}. Resize them, '
        "or set network='mlp'."
      )

  @property
  def _layers(self) -> tuple[tuple[int, int, int], ...]:
    return KINDS[self.kind].layers

  @property
  def _torso_shape(self) -> tuple[int, ...]:
    """Shape of what the convolutions make of one image."""
    sides = self.observation_shape[:2]
    for _, kernel, stride in self._layers:
      sides = tuple((side - kernel) // stride + 1 for side in sides)
    return (*sides, self._layers[-1][0])

  @functools.cached_property
  def _head(self) -> mlp.Network:
    kind = mlp.DuelingMLP if self.dueling else mlp.MLP
    return kind(
      math.prod(self._torso_shape),
      (KINDS[self.kind].head,),
      self.output_size,
      'relu',
      f'{self.name}/head',
    )

  def _torso_shapes(self) -> mlp.Shapes:
    shapes: mlp.Shapes = []
    inputs = self.observation_shape[-1]
    for i, (channels, kernel, _) in enumerate(self._layers):
      shapes.append((f'{self.name}/conv_{i}/b', (channels,)))
      shapes.append(
        (f'{self.name}/conv_{i}/w', (kernel, kernel, inputs, channels))
      )
      inputs = channels
    return shapes

  def shapes(self) -> mlp.Shapes:
    """(name, shape) of each variable: convolutions, then head, bias first."""
    return self._torso_shapes() + self._head.shapes()

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    """New variables: truncated normal 1/sqrt(inputs), as for `MLP`."""
    arrays = []
    for _, shape in self._torso_shapes():
      array = np.zeros(shape, np.float32)
      if len(shape) == 4:
        scale = 1 / np.sqrt(math.prod(shape[:3]))
        array[...] = mlp.truncated_normal(rng, shape) * scale
      arrays.append(array)
    return arrays + self._head.initial(rng)

  def make_sonnet(self) -> mlp.Apply:
    """`apply(variables, images [B, *shape]) -> [B, output_size]`, pure."""

    def make():
      layers: list[Callable] = []
      for i, (channels, kernel, stride) in enumerate(self._layers):
        layers.append(
          snt.Conv2D(
            channels, kernel, stride, padding='VALID', name=f'conv_{i}'
          )
        )
        layers.append(tf.nn.relu)
      return snt.Sequential(layers)

    shapes = self._torso_shapes()
    example = np.zeros((1, *self.observation_shape), np.float32)
    torso = mlp.functional(make, example, shapes)
    head = self._head.make_sonnet()

    def apply(variables: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
      images = tf.cast(inputs, tf.float32) / 255
      features = torso(variables[: len(shapes)], images)
      return head(variables[len(shapes) :], features)

    return apply

  def prepare(self, variables: Sequence[np.ndarray]) -> list[list[tf.Tensor]]:
    """Tensors of each member: a copy, made once for each new theta."""
    _use_one_thread()
    # Copied: tf.constant shares the memory of an array that is aligned.
    return [
      [tf.constant(array[member].copy()) for array in variables]
      for member in range(len(variables[0]))
    ]

  def forward(
    self, variables: list[list[tf.Tensor]], inputs: np.ndarray
  ) -> np.ndarray:
    """Q of P members.

    Args:
      variables: what `prepare` made.
      inputs: uint8 [P, K, *observation_shape].

    Returns:
      [P, K, output_size].
    """
    return np.stack(
      [
        self._call(one, tf.constant(x)).numpy()
        for one, x in zip(variables, inputs)
      ]
    )

  @functools.cached_property
  def _call(self) -> Any:
    """The graph that acts; made by the first call, so in the acting node."""
    apply = self.make_sonnet()
    signature = (
      [tf.TensorSpec(shape) for _, shape in self.shapes()],
      tf.TensorSpec((None, *self.observation_shape), tf.uint8),
    )
    return tf.function(apply, input_signature=signature, autograph=False)


def _use_one_thread() -> None:
  """An actor is one of many processes: more threads take others' cores."""
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
  except RuntimeError:
    pass  # TensorFlow runs already, as its node has set it.
