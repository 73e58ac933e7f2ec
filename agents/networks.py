"""Networks, each in two forms that read the same flat vector.

The Sonnet form is learned; the NumPy form acts. For small networks a NumPy pass
costs a tenth of a TensorFlow call, and nodes that only act never start
TensorFlow. `tests/agents/test_networks.py` holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np
import sonnet as snt
import tensorflow as tf

_TF_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
  'relu': tf.nn.relu,
  'tanh': tf.nn.tanh,
}
_NUMPY_ACTIVATIONS: dict[str, Callable[..., np.ndarray]] = {
  # In place: acting allocates nothing but the matrix products.
  'relu': lambda x: np.maximum(x, 0.0, out=x),
  'tanh': lambda x: np.tanh(x, out=x),
}


@dataclasses.dataclass(frozen=True)
class MLP:
  """A multilayer perceptron on flattened observations.

  Attributes:
    input_size: number of inputs.
    hidden_sizes: units of each hidden layer.
    output_size: number of outputs.
    activation: 'relu' or 'tanh', after each hidden layer.
    name: prefix of the variables' names.
  """

  input_size: int
  hidden_sizes: tuple[int, ...]
  output_size: int
  activation: str = 'relu'
  name: str = 'mlp'

  def __post_init__(self):
    sizes = (self.input_size, *self.hidden_sizes, self.output_size)
    if min(sizes) < 1:
      raise ValueError(f'Layer sizes must be positive, got {sizes}.')
    if self.activation not in _TF_ACTIVATIONS:
      raise ValueError(
        f'activation={self.activation!r} is not known. Choose one of '
        f'{sorted(_TF_ACTIVATIONS)}.'
      )

  def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each variable, in Sonnet's order: bias first."""
    sizes = (self.input_size, *self.hidden_sizes, self.output_size)
    found: list[tuple[str, tuple[int, ...]]] = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
      found.append((f'{self.name}/linear_{i}/b', (outputs,)))
      found.append((f'{self.name}/linear_{i}/w', (inputs, outputs)))
    return found

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    """New variables: weights truncated normal 1/sqrt(inputs), biases zero.

    Sonnet's default (Ioffe and Szegedy 2015), drawn in NumPy so that nodes
    without TensorFlow can do it too.
    """
    arrays = []
    for _, shape in self.shapes():
      array = np.zeros(shape, np.float32)
      if len(shape) == 2:
        array[...] = _truncated_normal(rng, shape) / np.sqrt(shape[0])
      arrays.append(array)
    return arrays

  def make_sonnet(self) -> Callable[..., tf.Tensor]:
    """`apply(variables, inputs [B, ...]) -> [B, output_size]`, pure."""
    # init_scope: the first loss may ask for this in the middle of a trace, and
    # a module belongs to no graph.
    with tf.init_scope(), snt.functional.variables():
      module = snt.Sequential(
        [
          snt.Flatten(),
          snt.nets.MLP(
            (*self.hidden_sizes, self.output_size),
            activation=_TF_ACTIVATIONS[self.activation],
            name=self.name,
          ),
        ]
      )
      transformed = snt.functional.transform(module)
      transformed.init(tf.zeros((1, self.input_size)))
      created = module.trainable_variables
    got = [tuple(v.shape) for v in created]
    assert got == [shape for _, shape in self.shapes()], (got, self.shapes())
    references = [v.ref() for v in created]

    def apply(variables: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
      return transformed.apply(dict(zip(references, variables)), inputs)

    return apply

  def forward(
    self, variables: Sequence[np.ndarray], inputs: np.ndarray
  ) -> np.ndarray:
    """The NumPy form, for P members at once.

    Args:
      variables: views `[P, *shape]` in layout order.
      inputs: [P, K, ...].

    Returns:
      [P, K, output_size].
    """
    x = inputs.reshape(inputs.shape[:2] + (-1,))
    last = len(variables) - 2
    for i in range(0, len(variables), 2):
      x = np.matmul(x, variables[i + 1])
      x += variables[i][:, None, :]
      if i < last:
        x = _NUMPY_ACTIVATIONS[self.activation](x)
    return x


def _truncated_normal(rng: np.random.Generator, shape) -> np.ndarray:
  """Normal draws, those beyond two standard deviations drawn again."""
  draws = rng.standard_normal(shape)
  while (outside := np.abs(draws) > 2).any():
    draws[outside] = rng.standard_normal(int(outside.sum()))
  return draws
