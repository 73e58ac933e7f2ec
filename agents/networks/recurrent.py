"""Memory within an episode: stacked observations, or an LSTM.

Both have a state [K, S], which a step reads and writes, and which is reset when
an episode begins. Each has a NumPy form for acting, one step of K environments,
and a TensorFlow form for training, whole unrolls. An unroll also returns the
outputs for the true last observations of episodes that a time limit ended,
which the bootstrap needs.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf

from murmuration.agents.networks import mlp


@dataclasses.dataclass(frozen=True)
class StateStack:
  """The last `depth` observations, oldest first (IMPASS, Eq. 9).

  At a reset all are copies of the first observation. The state consists of the
  `depth - 1` observations before the present one, oldest first and flattened,
  so that blocks hold each observation once.
  """

  depth: int  # at least 1, which stacks nothing
  input_size: int

  @property
  def state_size(self) -> int:
    return (self.depth - 1) * self.input_size

  @property
  def output_size(self) -> int:
    return self.depth * self.input_size

  def begin(self, state: np.ndarray, x: np.ndarray, fresh: np.ndarray) -> None:
    """Resets state [K, S] in place where x [K, I] begins an episode."""
    if self.depth > 1:
      state[fresh] = np.tile(x[fresh], self.depth - 1)

  def step(self, state: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The stack [K, depth * I]; its last S columns are the next state."""
    return np.concatenate([state, x], axis=1) if self.depth > 1 else x

  def unroll(
    self,
    x: tf.Tensor,
    final: tf.Tensor,
    state: tf.Tensor,
    start: tf.Tensor,
    ends: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Stacks for whole unrolls.

    Args:
      x: observations [T + 1, B, I].
      final: true last observations [F, B, I].
      state: at step 0, [B, S].
      start: whether an episode begins at step t, for t = 1 .. T, bool [T, B].
      ends: whether a time limit ended the episode of each of `final` at step t,
        at most once, bool [F, T, B].

    Returns:
      Stacks [T + 1, B, depth * I], and those of `final` [F, B, depth * I].
    """
    before = tf.split(state, self.depth - 1, axis=-1) if self.depth > 1 else []
    begins = start[..., None]
    at_end = tf.cast(ends[..., None], x.dtype)
    stack, final_stack = [x], [final]
    # From young to old: the observation d steps ago was d - 1 steps ago at the
    # previous step, unless an episode began in between.
    for oldest_but in reversed(before):
      younger = stack[0]
      final_stack.insert(0, tf.reduce_sum(at_end * younger[:-1], axis=1))
      older = tf.where(begins, x[1:], younger[:-1])
      stack.insert(0, tf.concat([oldest_but[None], older], axis=0))
    return tf.concat(stack, axis=-1), tf.concat(final_stack, axis=-1)


@dataclasses.dataclass(frozen=True)
class LSTM:
  """A long short-term memory, as Sonnet's (Hochreiter and Schmidhuber 1997).

  The gates are input, forget, candidate and output, in this order. The bias of
  the forget gate starts at 1 (Jozefowicz et al. 2015). The state is hidden,
  then cell.
  """

  input_size: int
  size: int  # units, and numbers of the output
  name: str = 'lstm'  # prefix of the variables' names

  @property
  def state_size(self) -> int:
    return 2 * self.size

  def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each variable: bias, weights of inputs and hidden."""
    gates = 4 * self.size
    return [
      (f'{self.name}/b', (gates,)),
      (f'{self.name}/w_i', (self.input_size, gates)),
      (f'{self.name}/w_h', (self.size, gates)),
    ]

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    """Fresh variables: truncated normal 1/sqrt(units), as Sonnet's."""
    scale = 1 / np.sqrt(self.size)
    bias, *weights = (shape for _, shape in self.shapes())
    first = np.zeros(bias, np.float32)
    first[self.size : 2 * self.size] = 1.0
    return [
      first,
      *(
        (scale * mlp.truncated_normal(rng, shape)).astype(np.float32)
        for shape in weights
      ),
    ]

  def step(
    self, variables: Sequence[np.ndarray], state: np.ndarray, x: np.ndarray
  ) -> np.ndarray:
    """One step of K environments, from views `[*shape]` of the variables.

    Takes `state` [K, S] and `x` [K, I] and returns the next state [K, S], of
    which the first `size` columns are the output.
    """
    b, w_i, w_h = variables
    n = self.size
    gates = x @ w_i
    gates += state[:, :n] @ w_h
    gates += b
    candidate = np.tanh(gates[:, 2 * n : 3 * n])
    # sigmoid(x) = (1 + tanh(x / 2)) / 2 cannot overflow, and takes one pass for
    # all three gates.
    gates *= 0.5
    squashed = np.tanh(gates, out=gates)
    squashed += 1.0
    squashed *= 0.5
    following = np.empty_like(state)
    cell = following[:, n:]
    np.multiply(squashed[:, n : 2 * n], state[:, n:], out=cell)
    cell += squashed[:, :n] * candidate
    np.multiply(squashed[:, 3 * n :], np.tanh(cell), out=following[:, :n])
    return following

  def unroll(
    self,
    variables: Sequence[tf.Tensor],
    x: tf.Tensor,
    final: tf.Tensor,
    state: tf.Tensor,
    start: tf.Tensor,
    ends: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Outputs for whole unrolls; other arguments as for `StateStack.unroll`.

    Args:
      variables: in order.
      x: inputs [T + 1, B, I].
      final: inputs for the true last observations [F, B, I].

    Returns:
      Outputs [T + 1, B, size], and those for `final` [F, B, size].
    """
    b, w_i, w_h = variables
    # One product for the inputs of all steps.
    inputs = tf.tensordot(x, w_i, 1) + b
    final_input = tf.tensordot(final, w_i, 1) + b
    hidden, cell = tf.split(state, 2, axis=-1)
    kept_hidden = kept_cell = tf.zeros_like(final_input[..., : self.size])
    continues = tf.cast(tf.logical_not(start), x.dtype)[..., None]
    at_end = tf.cast(ends, x.dtype)[..., None]
    outputs = []
    num_steps = x.shape[0] - 1
    for t in range(num_steps + 1):
      if t:
        hidden, cell = continues[t - 1] * hidden, continues[t - 1] * cell
      hidden, cell = self._cell(inputs[t] + hidden @ w_h, cell)
      outputs.append(hidden)
      if t < num_steps:
        kept_hidden += at_end[:, t] * hidden
        kept_cell += at_end[:, t] * cell
    last, _ = self._cell(
      final_input + tf.tensordot(kept_hidden, w_h, 1), kept_cell
    )
    return tf.stack(outputs), last

  @staticmethod
  def _cell(gates: tf.Tensor, cell: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    i, f, g, o = tf.split(gates, 4, axis=-1)
    cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(cell), cell
