"""Unrolls of K environments as one item: T steps, [T, K] blocks.

An item costs Reverb the same whatever it holds, so T steps of K environments
are one. Each column is an array of its own, in the order of `Block`. A block
may contain the ends of any number of episodes; nothing is padded. An item may
also be several successive blocks, each column with an additional first axis.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from murmuration.replay import packing


class Block(NamedTuple):
  """Columns of a block; in a batch, each has additional leading axes.

  Attributes:
    observation: acted on at steps 0 .. T-1, and the one after them; float32 or
      uint8 [T + 1, K, ...]. After the end of an episode comes the first
      observation of the next.
    final_observation: true last observations of the episodes that a time limit
      ended in this block, in order, of the same dtype, [F, K, ...]; arbitrary
      where an environment had fewer than F.
    action: int32 [T, K], or float32 [T, K, ...].
    reward: in the environment's units, float32 [T, K].
    discount: 0 where the step terminated the episode, else 1, float32 [T, K].
    last: whether the episode ended with this step, either way, bool [T, K].
    valid: False where the step is not experience, bool [T, K]: the environment
      broke, or its true end was overwritten (see `BlockAdder`).
    behaviour: output of the acting policy for the action, float32 [T, K, A'].
    core: recurrent state at step 0, float32 [K, S].
    version: learner steps of the parameters that acted at step 0, int64 [].
    written_at: `packing.written_now()` at the last step, float32 [].
  """

  observation: Any
  final_observation: Any
  action: Any
  reward: Any
  discount: Any
  last: Any
  valid: Any
  behaviour: Any
  core: Any
  version: Any
  written_at: Any


# Axis of the environments in each column; other columns have none.
ENVIRONMENT_AXIS = {
  'observation': 1,
  'final_observation': 1,
  'action': 1,
  'reward': 1,
  'discount': 1,
  'last': 1,
  'valid': 1,
  'behaviour': 1,
  'core': 0,
}


@dataclasses.dataclass(frozen=True)
class BlockLayout:
  """Shapes of a block.

  Attributes:
    unroll_length: T, steps.
    num_envs: K, environments.
    action_shape: of one action, () for a discrete one.
    discrete: whether actions are int32, or float32.
    observation_dtype: 'float32' or 'uint8'.
    behaviour_size: A', numbers of the policy's output kept at each step.
    core_size: S, numbers of recurrent state; 0 without one.
    max_episode_steps: the environment's time limit; None if it has none.
  """

  unroll_length: int
  num_envs: int
  observation_shape: tuple[int, ...]
  action_shape: tuple[int, ...] = ()
  discrete: bool = True
  observation_dtype: str = 'float32'
  behaviour_size: int = 1
  core_size: int = 0
  max_episode_steps: int | None = None

  def __post_init__(self):
    packing.check_layout(self)
    if min(self.unroll_length, self.num_envs) < 1:
      raise ValueError(
        f'unroll_length={self.unroll_length} and num_envs={self.num_envs} must '
        'be at least 1.'
      )
    if min(self.behaviour_size, self.core_size) < 0:
      raise ValueError(
        f'behaviour_size={self.behaviour_size} and core_size={self.core_size} '
        'must not be negative.'
      )
    limit = self.max_episode_steps
    if limit is not None and limit < 1:
      raise ValueError(f'max_episode_steps={limit} must be at least 1.')

  @property
  def max_truncations(self) -> int:
    """F, how often a time limit can end an episode within T steps.

    At least 1, because environments without a known limit truncate too.
    """
    limit = self.max_episode_steps or self.unroll_length
    return 1 + (self.unroll_length - 1) // limit

  def zeros(self) -> Block:
    """A new block of zeros, with `valid` True."""
    num_steps, num_envs = self.unroll_length, self.num_envs
    steps = (num_steps, num_envs)
    seen = np.dtype(self.observation_dtype)
    return Block(
      observation=np.zeros(
        (num_steps + 1, num_envs, *self.observation_shape), seen
      ),
      final_observation=np.zeros(
        (self.max_truncations, num_envs, *self.observation_shape), seen
      ),
      action=np.zeros(
        steps + self.action_shape, np.int32 if self.discrete else np.float32
      ),
      reward=np.zeros(steps, np.float32),
      discount=np.zeros(steps, np.float32),
      last=np.zeros(steps, np.bool_),
      valid=np.ones(steps, np.bool_),
      behaviour=np.zeros((*steps, self.behaviour_size), np.float32),
      core=np.zeros((num_envs, self.core_size), np.float32),
      version=np.zeros((), np.int64),
      written_at=np.zeros((), np.float32),
    )

  def item(self, joined: int) -> Block:
    """A new item of zeros, of `joined` blocks."""
    block = self.zeros()
    if joined == 1:
      return block
    return Block(*(np.stack([column] * joined) for column in block))

  def signature(self, joined: int = 1) -> Block:
    """Signature of a table of such blocks: a `Block` of tf.TensorSpec.

    With `joined` above 1 an item is that many successive blocks.
    """
    import tensorflow as tf  # actors write blocks without TensorFlow

    return Block(
      *(
        tf.TensorSpec(column.shape, column.dtype, name=name)
        for name, column in self.item(joined)._asdict().items()
      )
    )

  @property
  def num_steps(self) -> int:
    """Environment steps in one block, T * K."""
    return self.unroll_length * self.num_envs
