"""Networks, each in two forms that read the same flat vector.

The Sonnet form is for training and the NumPy form for acting. For small
networks a NumPy pass costs a tenth of a TensorFlow call, and nodes that only
act never start TensorFlow. `tests/agents/networks/test_mlp.py` checks that both
agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, Protocol

import numpy as np
import sonnet as snt
import tensorflow as tf

_NUMPY_ACTIVATIONS: dict[str, Callable[..., np.ndarray]] = {
  # In place, so that acting allocates nothing but the matrix products.
  'relu': lambda x: np.maximum(x, 0.0, out=x),
  'tanh': lambda x: np.tanh(x, out=x),
}

Shapes = list[tuple[str, tuple[int, ...]]]
# Weights per layer from which `einsum` beats BLAS for one input per member.
_WIDE = 4096
# (variables in layout order, inputs [B, ...]) -> outputs [B, output_size].
Apply = Callable[[Sequence['tf.Tensor'], 'tf.Tensor'], 'tf.Tensor']


class Network(Protocol):
  """The interface of networks to agents."""

  def shapes(self) -> Shapes:
    """(name, shape) of each variable, in layout order."""

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    """Fresh variables, in layout order."""

  def make_sonnet(self) -> Apply:
    """The form for training, as a pure function."""

  def prepare(self, variables: Sequence[np.ndarray]) -> Any:
    """Input of `forward` from `[P, *shape]`, reused for many calls.

    Views of them, if the agent is `compiled` (base.py): evolution strategies
    then change theta in place.
    """

  def forward(self, variables: Any, inputs: np.ndarray) -> np.ndarray:
    """The form for acting: inputs [P, K, ...] to outputs [P, K, ...]."""

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    """`forward` as operations of murmuration/portable.py, from `[*shape]`."""


@dataclasses.dataclass(frozen=True)
class MLP:
  """A multilayer perceptron on flattened observations."""

  input_size: int
  hidden_sizes: tuple[int, ...]  # units of each hidden layer
  output_size: int
  activation: str = 'relu'  # or 'tanh', after each hidden layer
  name: str = 'mlp'  # prefix of the variables' names

  def __post_init__(self):
    sizes = (self.input_size, *self.hidden_sizes, self.output_size)
    if min(sizes) < 1:
      raise ValueError(f'Layer sizes must be positive, got {sizes}.')
    if self.activation not in _NUMPY_ACTIVATIONS:
      raise ValueError(
        f'activation={self.activation!r} is not known. Choose one of '
        f'{sorted(_NUMPY_ACTIVATIONS)}.'
      )

  def shapes(self) -> Shapes:
    """(name, shape) of each variable, in Sonnet's order: bias first."""
    sizes = (self.input_size, *self.hidden_sizes, self.output_size)
    found: Shapes = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
      found.append((f'{self.name}/linear_{i}/b', (outputs,)))
      found.append((f'{self.name}/linear_{i}/w', (inputs, outputs)))
    return found

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    """Fresh variables: weights truncated normal 1/sqrt(inputs), biases zero.

    This is Sonnet's default (Ioffe and Szegedy 2015), drawn in NumPy so that
    nodes without TensorFlow can do it too.
    """
    arrays = []
    for _, shape in self.shapes():
      array = np.zeros(shape, np.float32)
      if len(shape) == 2:
        array[...] = truncated_normal(rng, shape) / np.sqrt(shape[0])
      arrays.append(array)
    return arrays

  def make_sonnet(self) -> Apply:
    """`apply(variables, inputs [B, ...]) -> [B, output_size]`, pure."""

    def make():
      return snt.Sequential(
        [
          snt.Flatten(),
          snt.nets.MLP(
            (*self.hidden_sizes, self.output_size),
            activation=getattr(tf.nn, self.activation),
            name=self.name.replace('/', '_'),
          ),
        ]
      )

    example = np.zeros((1, self.input_size), np.float32)
    return functional(make, example, self.shapes())

  def prepare(self, variables: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """The views themselves: they reflect in-place changes of theta."""
    return variables

  def forward(
    self, variables: Sequence[np.ndarray], inputs: np.ndarray
  ) -> np.ndarray:
    """The NumPy form, for P members at once.

    Takes views `[P, *shape]` and inputs [P, K, ...]; returns
    [P, K, output_size].
    """
    x = inputs.reshape(inputs.shape[:2] + (-1,))
    last = len(variables) - 2
    activation = _NUMPY_ACTIVATIONS[self.activation]
    for i in range(0, len(variables), 2):
      x = _products(x, variables[i + 1])
      x += variables[i][:, None, :]
      if i < last:
        x = activation(x)
    return x

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    found: list[list[Any]] = [['flatten', self.input_size]]
    for i in range(0, len(variables), 2):
      found += [['dense', variables[i], variables[i + 1]], [self.activation]]
    return found[:-1]


@dataclasses.dataclass(frozen=True)
class DuelingMLP(MLP):
  """A multilayer perceptron that ends in a value and an advantage stream.

  Wang et al. 2016, arXiv:1511.06581, Eq. 9:

    Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

  Each stream has its own last hidden layer; the earlier ones are shared.
  """

  def __post_init__(self):
    if not self.hidden_sizes:
      raise ValueError(
        'A dueling network needs at least one hidden layer: without, its two '
        'streams are one linear layer. Give hidden_sizes.'
      )
    super().__post_init__()

  @functools.cached_property
  def _parts(self) -> tuple[MLP | None, MLP, MLP]:
    """The shared layers (None if there are none), V and A."""
    *below, last = self.hidden_sizes
    shared = None
    if below:
      shared = MLP(
        self.input_size,
        tuple(below[:-1]),
        below[-1],
        self.activation,
        self.name,
      )
    size = below[-1] if below else self.input_size
    value, advantage = (
      MLP(size, (last,), outputs, self.activation, f'{self.name}/{stream}')
      for stream, outputs in (('value', 1), ('advantage', self.output_size))
    )
    return shared, value, advantage

  def _split(self, variables: Sequence[Any]) -> list[Sequence[Any]]:
    """The variables of the shared layers (maybe none), of V and of A."""
    return [variables[:-8], variables[-8:-4], variables[-4:]]

  def shapes(self) -> Shapes:
    """(name, shape) of each variable: shared layers, V, A."""
    return [pair for part in self._parts if part for pair in part.shapes()]

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    return [
      array for part in self._parts if part for array in part.initial(rng)
    ]

  def make_sonnet(self) -> Apply:
    """`apply(variables, inputs [B, ...]) -> Q [B, output_size]`, pure."""
    parts = self._parts
    shared = parts[0].make_sonnet() if parts[0] else None
    value, advantage = (part.make_sonnet() for part in parts[1:])
    activation = getattr(tf.nn, self.activation)

    def apply(variables: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
      of_shared, of_value, of_advantage = self._split(variables)
      x = inputs
      if shared is not None:
        x = activation(shared(of_shared, x))
      a = advantage(of_advantage, x)
      return value(of_value, x) + a - tf.reduce_mean(a, axis=-1, keepdims=True)

    return apply

  def forward(
    self, variables: Sequence[np.ndarray], inputs: np.ndarray
  ) -> np.ndarray:
    shared, value, advantage = self._parts
    of_shared, of_value, of_advantage = self._split(variables)
    x = inputs
    if shared is not None:
      x = _NUMPY_ACTIVATIONS[self.activation](shared.forward(of_shared, x))
    q = advantage.forward(of_advantage, x)
    q += value.forward(of_value, x) - q.mean(axis=-1, keepdims=True)
    return q

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    shared, *streams = self._parts
    of_shared, *of_streams = self._split(variables)
    found: list[list[Any]] = []
    if shared is not None:
      found = [*shared.operations(of_shared), [self.activation]]
    both = [part.operations(own) for part, own in zip(streams, of_streams)]
    return [*found, ['dueling', *both]]


def _products(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """x [P, K, I] times weights [P, I, O] of P members: [P, K, O].

  BLAS is called once per member, which is slow for one input each: from 16
  members on, 64 x 64 takes 1.3 to 1.5 times as long as with `einsum`, and
  256 x 256 nearly twice; for a single member 64 x 64 is 1 us faster. The choice
  must not depend on P, because a member's outputs must be the same to the last
  bit whatever members are beside it.
  """
  if x.shape[1] == 1 and weights[0].size >= _WIDE:
    return np.einsum('pki,pio->pko', x, weights)
  return np.matmul(x, weights)


def functional(
  make: Callable[[], snt.Module], example: np.ndarray, shapes: Shapes
) -> Apply:
  """Returns a Sonnet module as a pure function `apply(variables, inputs)`.

  The module creates its variables from an `example` input; they must have these
  `shapes`, in order.

  Raises:
    ValueError: they have others, or the module has a state (BatchNorm).
  """
  # init_scope: the first loss may call this in the middle of a trace, but a
  # module must not belong to a graph.
  with tf.init_scope(), snt.functional.variables():
    module = make()
    transformed = snt.functional.transform(module)
    transformed.init(tf.constant(example))
    created = module.trainable_variables
  got = [(v.name, tuple(v.shape)) for v in created]
  if [shape for _, shape in got] != [tuple(shape) for _, shape in shapes]:
    raise ValueError(
      f'The module creates {got}, but its shapes() are {list(shapes)}. Say '
      'them in its order.'
    )
  references = [v.ref() for v in created]

  def apply(variables: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    return transformed.apply(dict(zip(references, variables)), inputs)

  return apply


def truncated_normal(rng: np.random.Generator, shape) -> np.ndarray:
  """Normal draws; those beyond two standard deviations are drawn again."""
  draws = rng.standard_normal(shape)
  while (outside := np.abs(draws) > 2).any():
    draws[outside] = rng.standard_normal(int(outside.sum()))
  return draws
