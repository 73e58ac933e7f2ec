"""The actor-critic network of unroll agents: memory, torso, policy and value.

  observation -> [stack] -> [normalizer] -> torso -> [LSTM] -> policy, value

Without a shared torso, policy and value are two networks. The last of the
policy's outputs may be variables that no observation changes. As in
networks/mlp.py there are two forms: `unroll` in TensorFlow, for training, and
`step` in NumPy, for acting; tests check that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from murmuration.agents.losses import vtrace
from murmuration.agents.networks import conv
from murmuration.agents.networks import mlp
from murmuration.agents.networks import normalization
from murmuration.agents.networks import recurrent
from murmuration.environment_loops import environments
from murmuration.replay import blocks

# Makes a new policy nearly independent of the observation, with a Gaussian's
# sigma near softplus(0).
_POLICY_HEAD_SCALE = 0.01
_NO_NETWORK = ('lstm', 'free', 'normalizer')  # parts of other forms


class Unrolled(NamedTuple):
  """The network's outputs for an unroll, time-major."""

  policy: tf.Tensor  # outputs for the policy's head, [T, B, policy_size]
  values: tf.Tensor  # V(x_0) .. V(x_T), [T + 1, B]
  final_values: tf.Tensor  # V of the true ends at time limits, [F, B]
  observations: tf.Tensor  # raw, as acted on, [T, B, I]


@dataclasses.dataclass(frozen=True)
class UnrollNetwork:
  """The network and its sizes."""

  spec: environments.Spec
  policy_size: int  # outputs for the policy's head
  hidden_sizes: tuple[int, ...]  # units of each hidden layer of a torso
  activation: str = 'tanh'  # or 'relu'
  # 'mlp' on flat observations, a convolutional network of conv.py on images, or
  # 'auto' to choose by the observations.
  network: str = 'auto'
  shared: bool = True  # one torso for policy and value, or one each
  lstm_size: int = 0  # units between shared torso and heads; 0 for no LSTM
  stack: int = 1  # observations seen at once; 1 for the present one alone
  normalize: bool = False  # whether observations pass a running normalizer
  num_free: int = 0  # last outputs for the policy's head that are variables

  def __post_init__(self):
    if self.images and (self.stack > 1 or self.normalize):
      raise ValueError(
        f'The convolutions take images one by one and scale them to [0, 1], '
        f'but stack={self.stack}, normalize_observations={self.normalize}. '
        'Set agent.stack=1 and agent.normalize_observations=False, and stack '
        'images with gymnasium.wrappers.FrameStackObservation.'
      )
    if self.lstm_size and not (self.shared and self.hidden_sizes):
      raise ValueError(
        f'lstm_size={self.lstm_size} needs a shared torso with a hidden layer, '
        f'but shared={self.shared} and hidden_sizes={self.hidden_sizes}. Set '
        'shared_torso=True, or lstm_size=0.'
      )

  @functools.cached_property
  def _kind(self) -> str:
    return conv.chosen(self.network, self.spec)

  @property
  def images(self) -> bool:
    """Whether the observations go through convolutions."""
    return self._kind != 'mlp'

  @property
  def observation_shape(self) -> tuple[int, ...]:
    return tuple(self.spec.observation_shape)

  @functools.cached_property
  def memory(self) -> recurrent.StateStack:
    return recurrent.StateStack(self.stack, math.prod(self.observation_shape))

  @functools.cached_property
  def lstm(self) -> recurrent.LSTM | None:
    if not self.lstm_size:
      return None
    return recurrent.LSTM(self.hidden_sizes[-1], self.lstm_size)

  @functools.cached_property
  def normalizer(self) -> normalization.Normalizer | None:
    size = math.prod(self.observation_shape)
    return normalization.Normalizer(size) if self.normalize else None

  @functools.cached_property
  def core_size(self) -> int:
    """Size S of the recurrent state: the stack's, then the LSTM's."""
    return self.memory.state_size + (self.lstm.state_size if self.lstm else 0)

  @functools.cached_property
  def _plain(self) -> bool:
    """Whether a step is one MLP pass, which a shortcut makes a fifth faster."""
    return not (self.images or self.core_size or self.normalize)

  @functools.cached_property
  def _parts(self) -> dict[str, Any]:
    """The parts that have variables, in layout order."""
    inputs = self.memory.output_size
    parts: dict[str, Any] = {}

    def network(sizes: tuple[int, ...], outputs: int, name: str) -> Any:
      if self.images:
        return conv.make(self._kind, self.spec, outputs, name=name)
      return mlp.MLP(inputs, sizes, outputs, self.activation, name)

    sizes, outputs = self.hidden_sizes, self._num_made
    if self.lstm is not None:
      parts['torso'] = network(sizes[:-1], sizes[-1], 'torso')
      parts['lstm'] = self.lstm
      parts['heads'] = mlp.MLP(self.lstm_size, (), outputs + 1, name='heads')
    elif self.shared:
      parts['heads'] = network(sizes, outputs + 1, 'heads')
    else:
      parts['policy'] = network(sizes, outputs, 'policy')
      parts['value'] = network(sizes, 1, 'value')
    if self.num_free:
      parts['free'] = _Free(self.num_free)
    if self.normalizer is not None:
      parts['normalizer'] = self.normalizer
    return parts

  @functools.cached_property
  def _num_made(self) -> int:
    """Outputs for the policy's head that are made of the observation."""
    return self.policy_size - self.num_free

  def shapes(self) -> mlp.Shapes:
    """(name, shape) of each variable, in layout order."""
    return [pair for part in self._parts.values() for pair in part.shapes()]

  def groups(self) -> dict[str, list[str]]:
    """Names of the variables of each part."""
    return {
      name: [variable for variable, _ in part.shapes()]
      for name, part in self._parts.items()
    }

  def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
    """New variables; the policy's outputs start close to 0."""
    arrays = []
    for name, part in self._parts.items():
      if name in ('free', 'normalizer'):
        arrays += part.initial()
        continue
      new = part.initial(rng)
      if name in ('heads', 'policy'):
        new[-1][:, : self._num_made] *= _POLICY_HEAD_SCALE
      arrays += new
    return arrays

  def prepare(self, variables: Sequence[np.ndarray]) -> dict[str, Any]:
    """Input of `step` from views [P, *shape], to be reused while theta is."""
    parts = self.split(variables)
    for name, part in self._parts.items():
      if name not in _NO_NETWORK:
        parts[name] = part.prepare(parts[name])
    return parts

  def split(self, variables: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Groups variables, given in layout order, by part."""
    found, start = {}, 0
    for name, part in self._parts.items():
      end = start + len(part.shapes())
      found[name] = variables[start:end]
      start = end
    return found

  def step(
    self,
    parts: dict[str, Any],
    observation: np.ndarray,
    core: np.ndarray,
    fresh: np.ndarray,
    members: int = 1,
  ) -> tuple[np.ndarray, np.ndarray]:
    """One step of K environments, in NumPy.

    Args:
      parts: from `prepare`.
      observation: [K, ...].
      core: recurrent state [K, S]; reset in place where `fresh`.
      fresh: whether an episode begins with this observation, bool [K].
      members: P, with K / P environments each; 1 for an LSTM.

    Returns:
      The policy's outputs [K, policy_size] and the next core [K, S].
    """
    name = 'heads' if 'heads' in parts else 'policy'
    if self._plain:
      x = observation.reshape(members, -1, self.memory.input_size)
      x = x.astype(np.float32, copy=False)
      made = self._parts[name].forward(parts[name], x)
      return self._outputs(parts, made), core
    x = observation.reshape(len(observation), -1)
    if not self.images:
      x = x.astype(np.float32, copy=False)
    stacked = self.memory.state_size
    if self.core_size and fresh.any():
      self.memory.begin(core[:, :stacked], x, fresh)
      core[fresh, stacked:] = 0.0
    x = self.memory.step(core[:, :stacked], x)
    following = x[:, x.shape[1] - stacked :]
    x = x.reshape(members, -1, x.shape[1])
    if self.normalizer is not None:
      each = x.reshape(members, -1, self.normalizer.size)
      x = self.normalizer.normalize(parts['normalizer'], each).reshape(x.shape)
    if self.images:
      x = x.reshape(1, -1, *self.observation_shape)
    if self.lstm is not None:
      x = self._parts['torso'].forward(parts['torso'], x)[0]
      x = np.tanh(x) if self.activation == 'tanh' else np.maximum(x, 0)
      state = self.lstm.step(
        [v[0] for v in parts['lstm']], core[:, stacked:], x
      )
      following = np.concatenate([following, state], axis=1)
      x = state[None, :, : self.lstm_size]
    made = self._parts[name].forward(parts[name], x)
    return self._outputs(parts, made), following

  def _outputs(self, parts: dict[str, Any], made: np.ndarray) -> np.ndarray:
    """[K, policy_size] of a network's outputs [P, K / P, ...]."""
    outputs = made.reshape(-1, made.shape[2])[:, : self._num_made]
    if not self.num_free:
      return outputs
    free = np.repeat(parts['free'][0], made.shape[1], axis=0)
    return np.concatenate([outputs, free], axis=1)

  def operations(self, variables: Sequence[np.ndarray]) -> list[list[Any]]:
    """`step` as operations of murmuration/portable.py, for views `[*shape]`."""
    parts = self.split(variables)
    found: list[list[Any]] = []
    if not self.images:
      size = math.prod(self.observation_shape)
      found = [['float'], ['flatten', size]]
      if self.normalizer is not None:
        # Before the stack, because each observation is normalised by itself.
        found += self.normalizer.operations(parts['normalizer'])
      if self.stack > 1:
        found.append(['stack', self.stack, size])
    if self.lstm is not None:
      found += self._parts['torso'].operations(parts['torso'])
      found += [[self.activation], ['lstm', *parts['lstm']]]
    name = 'heads' if 'heads' in parts else 'policy'
    found += self._parts[name].operations(parts[name])
    return [*found, ['take', self._num_made]]

  def make_unroll(self) -> Callable[..., Unrolled]:
    """`unroll(variables, block [b, ...], truncated [T, B])`, in TensorFlow."""
    applies = {
      name: part.make_sonnet()
      for name, part in self._parts.items()
      if name not in _NO_NETWORK
    }

    image_parts = set(applies) if self.images else set()
    if self.lstm is not None:
      image_parts.discard('heads')

    def apply(name: str, parts: dict, x: tf.Tensor) -> tf.Tensor:
      """[T, B, I] to [T, B, outputs]."""
      rows = x.shape[:2]
      shape: tuple[int, ...] = (-1, x.shape[-1])
      if name in image_parts:
        shape = (-1, *self.observation_shape)
      return tf.reshape(
        applies[name](parts[name], tf.reshape(x, shape)), (*rows, -1)
      )

    def unroll(
      variables: Sequence[tf.Tensor], block: blocks.Block, truncated: tf.Tensor
    ) -> Unrolled:
      parts = self.split(variables)
      raw = self._flat(time_major(block.observation))
      final = self._flat(time_major(block.final_observation))
      number = final.shape[0]
      ends = vtrace.truncations(truncated, number)
      core = merge(block.core)
      start = time_major(block.last)
      stacked = self.memory.state_size
      x, last = self.memory.unroll(raw, final, core[:, :stacked], start, ends)
      # The true last observations are appended as more time steps.
      x = self._scaled(parts, tf.concat([x, last], axis=0))
      if self.lstm is not None:
        x = getattr(tf.nn, self.activation)(apply('torso', parts, x))
        x, last = self.lstm.unroll(
          parts['lstm'],
          x[:-number],
          x[-number:],
          core[:, stacked:],
          start,
          ends,
        )
        x = tf.concat([x, last], axis=0)
      if 'heads' in parts:
        both = apply('heads', parts, x)
        policy, values = tf.split(both, [self._num_made, 1], axis=-1)
        policy = policy[: -1 - number]
      else:
        policy = apply('policy', parts, x[: -1 - number])
        values = apply('value', parts, x)
      if self.num_free:
        shape = (*policy.shape[:2], self.num_free)
        free = tf.broadcast_to(parts['free'][0], shape)
        policy = tf.concat([policy, free], axis=-1)
      values = values[..., 0]
      return Unrolled(policy, values[:-number], values[-number:], raw[:-1])

    return unroll

  def _flat(self, x: tf.Tensor) -> tf.Tensor:
    """[..., *observation_shape] to [..., I]; images stay uint8."""
    lead = x.shape[: x.shape.rank - len(self.observation_shape)]
    x = tf.reshape(x, (*lead, math.prod(self.observation_shape)))
    return x if self.images else tf.cast(x, tf.float32)

  def _scaled(self, parts, x: tf.Tensor) -> tf.Tensor:
    if self.normalizer is None:
      return x
    variables = [tf.stop_gradient(v) for v in parts['normalizer']]
    each = tf.reshape(x, (-1, self.normalizer.size))
    return tf.reshape(self.normalizer.normalize(variables, each), x.shape)


@dataclasses.dataclass(frozen=True)
class _Free:
  """`size` numbers that are learned, and are 0 at first."""

  size: int

  def shapes(self) -> mlp.Shapes:
    return [('free/b', (self.size,))]

  def initial(self) -> list[np.ndarray]:
    return [np.zeros(self.size, np.float32)]


def time_major(x: tf.Tensor) -> tf.Tensor:
  """[b, T, K, ...] to [T, b * K, ...]; no copy for one block."""
  if x.shape[0] == 1:
    return x[0]
  x = tf.transpose(x, (1, 0, *range(2, x.shape.rank)))
  return tf.reshape(x, (x.shape[0], -1, *x.shape[3:]))


def merge(x: tf.Tensor) -> tf.Tensor:
  """[b, K, ...] to [b * K, ...]."""
  # Not -1 if both sizes are known: a column of size 0 would lose its length.
  known = None not in x.shape[:2]
  return tf.reshape(x, (x.shape[0] * x.shape[1] if known else -1, *x.shape[2:]))
