"""Convolutional networks for images, in the form of mlp.py.

Which network an environment gets is `chosen` by the shape of its observations.

They act in TensorFlow: there, unlike for an MLP, the mathematics costs more
than the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from murmuration.agents.networks import mlp
from murmuration.environment_loops import environments
from murmuration.replay import tensors as tensors_lib

Name = Literal['auto', 'mlp', 'nature', 'shallow', 'strided']


class _Size(NamedTuple):
  layers: tuple[tuple[int, int, int], ...]  # channels, kernel, stride
  head: int  # units; with dueling, of each stream


# 'nature': Mnih et al. 2015, methods. 'shallow': Mnih et al. 2013, section 5.1,
# and the shallow model of Espeholt et al. 2018; a third of the multiplications.
# 'strided', for images of any size: its layers depend on the image.
KINDS = {
  'nature': _Size(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
  'shallow': _Size(((16, 8, 4), (32, 4, 2)), 256),
  'strided': _Size((), 256),
}
# Settings of layers for vectors, and why they change nothing of these.
IGNORED = dict.fromkeys(
  ('hidden_sizes', 'activation'),
  'the layers of agent.network for images have sizes of their own',
)
# Sides, in pixels, of what 'auto' gives to 'nature'. Of larger images its head
# would have tens of millions of weights.
_NATURE_SIDES = (36, 128)
# Sides, in places, of what the layers of 'strided' leave at most.
_STRIDED_SIDE = 8


def is_image(spec: environments.Spec) -> bool:
  """Whether observations are images, or stacks of them.

  An image has three axes, or two if it is of bytes; a stack has one more.
  """
  axes = len(spec.observation_shape)
  return axes in (3, 4) or (axes == 2 and spec.observation_dtype == 'uint8')


def chosen(network: str, spec: environments.Spec) -> str:
  """The network for an environment: 'mlp', or one of `KINDS` for images.

  Args:
    network: `agent.network`: 'auto' takes what fits the observations.
    spec: of the environment.

  Raises:
    environments.EnvironmentRefused: the network does not take them.
  """
  shape, name = spec.observation_shape, spec.name
  if not is_image(spec):
    if network in ('auto', 'mlp'):
      return 'mlp'
    raise environments.EnvironmentRefused(
      f'agent.network={network!r} takes images, but {name} has observations of '
      f'shape {shape}. Set --config.agent.network=auto.'
    )
  if network == 'mlp':
    raise environments.EnvironmentRefused(
      f"agent.network='mlp' would take the images {shape} of {name} as "
      f'{math.prod(shape)} numbers. Set --config.agent.network=auto, or use '
      'gymnasium.wrappers.FlattenObservation.'
    )
  sides = _hwc(shape)[:2]
  if network == 'auto':
    low, high = _NATURE_SIDES
    fits = low <= min(sides) and max(sides) <= high
    return 'nature' if fits else 'strided'
  if min(sides) < _least_side(network):
    raise environments.EnvironmentRefused(
      f'agent.network={network!r} takes images of at least '
      f'{_least_side(network)} x {_least_side(network)} pixels, but {name} has '
      f'{shape}. Set --config.agent.network=auto.'
    )
  return network


def _channels_first(shape: Sequence[int]) -> bool:
  """Whether an image of three axes is (channels, height, width).

  The two axes that are equal are height and width. If none or all are, the
  channels are the fewer of first and last.
  """
  first, middle, last = shape
  if (first == middle) != (middle == last):
    return middle == last
  return first < last


def _hwc(shape: Sequence[int]) -> tuple[int, ...]:
  """(height, width, channels) of an image's shape, or a stack's."""
  if len(shape) == 2:
    return (*shape, 1)
  if len(shape) == 4:
    height, width, channels = _hwc(shape[1:])
    return (height, width, shape[0] * channels)
  if _channels_first(shape):
    return (*shape[1:], shape[0])
  return tuple(shape)


def _channels_last(images: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """[B, *shape] to [B, height, width, channels]: see `_hwc`."""
  if len(shape) == 4:
    each = [_channels_last(images[:, i], shape[1:]) for i in range(shape[0])]
    return tf.concat(each, axis=-1)
  if len(shape) == 2:
    return images[..., None]
  if _channels_first(shape):
    return tf.transpose(images, (0, 2, 3, 1))
  return images


def _least_side(kind: str) -> int:
  least = 1
  for _, kernel, stride in reversed(KINDS[kind].layers):
    least = (least - 1) * stride + kernel
  return least


@dataclasses.dataclass(frozen=True)
class ConvNet:
  """Convolutions and a head on images, scaled to [0, 1].

  Attributes:
    observation_shape: (height, width, channels), (84, 84, 4) for Atari, or
      (channels, height, width), or (height, width); or a stack of such.
    output_size: number of actions.
    dueling: whether the head has a value and an advantage stream.
    kind: of `KINDS`.
    name: prefix of the variables' names.
    dtype: of the images, 'uint8' or 'float32'.
    maximum: largest number in an image.
  """

  observation_shape: tuple[int, ...]
  output_size: int
  dueling: bool = False
  kind: str = 'nature'
  name: str = 'conv'
  dtype: str = 'uint8'
  maximum: float = 255.0

  def __post_init__(self):
    shape, least = self.observation_shape, _least_side(self.kind)
    if len(shape) not in (2, 3, 4) or min(_hwc(shape)[:2]) < least:
      raise ValueError(
        f'kind={self.kind!r} needs images of at least {least} x {least} pixels '
        f'and two to four axes, got observations of shape {shape}.'
      )

  @functools.cached_property
  def _image(self) -> tuple[int, ...]:
    return _hwc(self.observation_shape)

  @functools.cached_property
  def _layers(self) -> tuple[tuple[int, int, int], ...]:
    """(channels, kernel, stride) of each layer."""
    if self.kind != 'strided':
      return KINDS[self.kind].layers
    layers, side = [(32, 3, 2)], -(-max(self._image[:2]) // 2)
    while side > _STRIDED_SIDE:
      layers.append((64, 3, 2))
      side = -(-side // 2)
    return tuple(layers)

  @property
  def _torso_shape(self) -> tuple[int, ...]:
    """Shape of what the convolutions make of one image."""
    sides = self._image[:2]
    for _, kernel, stride in self._layers:
      if self._padding == 'VALID':
        sides = tuple(side - kernel + 1 for side in sides)
      sides = tuple(-(-side // stride) for side in sides)
    return (*sides, self._layers[-1][0])

  @property
  def _padding(self) -> str:
    return 'SAME' if self.kind == 'strided' else 'VALID'

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
    inputs = self._image[-1]
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
            channels, kernel, stride, padding=self._padding, name=f'conv_{i}'
          )
        )
        layers.append(tf.nn.relu)
      return snt.Sequential(layers)

    shapes = self._torso_shapes()
    example = np.zeros((1, *self._image), np.float32)
    torso = mlp.functional(make, example, shapes)
    head = self._head.make_sonnet()

    def apply(variables: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
      images = tf.cast(inputs, tf.float32) / self.maximum
      images = _channels_last(images, self.observation_shape)
      features = torso(variables[: len(shapes)], images)
      return head(variables[len(shapes) :], features)

    return apply

  def prepare(self, variables: Sequence[np.ndarray]) -> list[list[tf.Tensor]]:
    """Tensors of each member, made once for each new theta.

    They may be copies: theta must not change in place (`compiled`, base.py).
    """
    prepare_to_act()
    return [
      [tf.constant(array[member]) for array in variables]
      for member in range(len(variables[0]))
    ]

  def forward(
    self, variables: list[list[tf.Tensor]], inputs: np.ndarray
  ) -> np.ndarray:
    """Q of P members.

    Args:
      variables: what `prepare` made.
      inputs: images [P, K, *observation_shape].

    Returns:
      [P, K, output_size].
    """
    return np.stack(
      [
        self._call(one, tf.constant(x)).numpy()
        for one, x in zip(variables, inputs)
      ]
    )

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    shape = self.observation_shape
    found: list[list[Any]] = [['float'], ['divide', self.maximum]]
    # Channels last, as `_channels_last` has them.
    if len(shape) == 4:
      first = _channels_first(shape[1:])
      found.append(['transpose', (0, 3, 4, 1, 2) if first else (0, 2, 3, 1, 4)])
    elif len(shape) == 3 and _channels_first(shape):
      found.append(['transpose', (0, 2, 3, 1)])
    found.append(['reshape', self._image])
    for i, (_, _, stride) in enumerate(self._layers):
      bias, weights = variables[2 * i : 2 * i + 2]
      found += [['conv', bias, weights, stride, self._padding], ['relu']]
    rest = variables[2 * len(self._layers) :]
    return found + self._head.operations(rest)

  @functools.cached_property
  def _call(self) -> Any:
    """The graph that acts; made by the first call, so in the acting node."""
    apply = self.make_sonnet()
    signature = (
      [tf.TensorSpec(shape) for _, shape in self.shapes()],
      tf.TensorSpec((None, *self.observation_shape), self.dtype),
    )
    return tf.function(apply, input_signature=signature, autograph=False)


def make(
  kind: str,
  spec: environments.Spec,
  output_size: int,
  dueling: bool = False,
  name: str = 'conv',
) -> ConvNet:
  """The network of a `chosen` kind for the images of an environment."""
  dtype, maximum = spec.observation_dtype, spec.observation_maximum
  # The largest float that there is stands for no bound, in many environments.
  if maximum is None or not 0 < maximum < 1e6:
    maximum = 255.0 if dtype == 'uint8' else 1.0
  return ConvNet(
    tuple(spec.observation_shape),
    output_size,
    dueling,
    kind,
    name,
    dtype,
    maximum,
  )


def prepare_to_act() -> None:
  """TensorFlow as an actor needs it, which is one of many processes.

  More threads would take others' cores, and what each tensor leaks adds up.
  """
  tensors_lib.stop_leak()
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
  except RuntimeError:
    pass  # TensorFlow runs already, as its node has set it.
