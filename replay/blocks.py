"""Unrolls of K environments as one item: T steps, [T, K] blocks.

An item costs Reverb the same whatever it holds, so T steps of K environments
stepped together are one. Each column is an array of its own, in the order of
`Block`. A block may hold the ends of any number of episodes; nothing is padded.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import reverb

from replay import packing
from replay import writer as writer_lib


class Block(NamedTuple):
  """Columns of a block; in a batch each has leading axes more.

  Attributes:
    observation: acted on at steps 0 .. T-1, and what comes after them; float32
      or uint8 [T + 1, K, ...]. After the end of an episode stands the first
      observation of the next.
    final_observation: true last observation of the episode that a time limit
      ended in this block, of the same type, [K, ...]; anything where none was.
    action: int32 [T, K], or float32 [T, K, ...].
    reward: in the environment's units, float32 [T, K].
    discount: 0 where the step terminated the episode, else 1, float32 [T, K].
    last: the episode ended with this step, either way, bool [T, K].
    valid: False where the step is no experience, bool [T, K]: the environment
      broke, or its true end was overwritten (see `BlockAdder`).
    behaviour: what the acting policy said of the action, float32 [T, K, A'].
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


# Blocks are large, and each one in flight adds to the policy lag.
OPTIONS = writer_lib.WriteOptions(max_in_flight=2)

# Where each column has its environments; the rest are one for the whole block.
ENVIRONMENT_AXIS = {
  'observation': 1,
  'final_observation': 0,
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
    observation_shape: of one observation.
    action_shape: of one action, () for a discrete one.
    discrete: whether actions are int32, or float32.
    observation_dtype: 'float32' or 'uint8'.
    behaviour_size: A', numbers kept of the policy at each step.
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
    for field in ('observation_shape', 'action_shape'):
      shape = tuple(int(size) for size in getattr(self, field))
      object.__setattr__(self, field, shape)
    sizes = (self.unroll_length, self.num_envs, *self.observation_shape)
    if min(sizes, default=1) < 1 or min(self.action_shape, default=1) < 1:
      raise ValueError(
        f'unroll_length={self.unroll_length}, num_envs={self.num_envs}, '
        f'observation_shape={self.observation_shape} and action_shape='
        f'{self.action_shape} must all be at least 1.'
      )
    if min(self.behaviour_size, self.core_size) < 0:
      raise ValueError(
        f'behaviour_size={self.behaviour_size} and core_size={self.core_size} '
        'must not be negative.'
      )
    if self.observation_dtype not in ('float32', 'uint8'):
      raise ValueError(
        f'observation_dtype={self.observation_dtype!r} must be float32 or '
        'uint8. Observations of other numbers travel as float32.'
      )
    limit = self.max_episode_steps
    if limit is not None and limit < self.unroll_length:
      raise ValueError(
        f'unroll_length={self.unroll_length} is longer than an episode of at '
        f'most {limit} steps: a block holds one true end of an environment, '
        'and a time limit could make two. Set unroll_length to at most '
        f'{limit}.'
      )

  def zeros(self) -> Block:
    """An empty block, whose arrays can be written to."""
    num_steps, num_envs = self.unroll_length, self.num_envs
    steps = (num_steps, num_envs)
    seen = np.dtype(self.observation_dtype)
    return Block(
      observation=np.zeros(
        (num_steps + 1, num_envs, *self.observation_shape), seen
      ),
      final_observation=np.zeros((num_envs, *self.observation_shape), seen),
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

  def signature(self) -> Block:
    """Signature of a table of such blocks: a `Block` of tf.TensorSpec."""
    import tensorflow as tf  # an actor writes blocks without it

    return Block(
      *(
        tf.TensorSpec(column.shape, column.dtype, name=name)
        for name, column in self.zeros()._asdict().items()
      )
    )

  @property
  def num_steps(self) -> int:
    """Environment steps in one block, T * K."""
    return self.unroll_length * self.num_envs

  @property
  def nbytes(self) -> int:
    """Bytes of one block, before compression."""
    return sum(column.nbytes for column in self.zeros())


class BlockAdder:
  """Writes T steps of K environments as one item.

  An unfinished block is never written: it is gone when its actor is.

  A block has room for one true end per environment that a time limit made. If
  an environment makes a second within T steps, the step of the earlier one is
  marked as no experience: what it would bootstrap from is lost.

  Attributes:
    overwritten: steps so marked.
  """

  def __init__(
    self,
    client: reverb.Client | None,
    table: str,
    layout: BlockLayout,
    *,
    options: writer_lib.WriteOptions = OPTIONS,
    writer: Any = None,
  ):
    """Makes an adder with an empty block.

    Args:
      client: client of the server that holds the table.
      table: name of the table; its items are `layout.signature()`.
      layout: shapes of the blocks.
      options: see `writer.WriteOptions`; start from `OPTIONS`.
      writer: takes the blocks instead of the table, as an `ItemWriter` does. A
        block is written to again: it keeps a copy.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: no such table, or one of other items.
    """
    self.layout = layout
    self._block = layout.zeros()
    self._t = 0
    self.overwritten = 0
    self._truncated_at = np.full(layout.num_envs, -1)
    self._writer = writer or writer_lib.ItemWriter(
      client, table, layout.signature(), options
    )

  @property
  def lost(self) -> int:
    """Items that went with a lost server."""
    return self._writer.lost

  def add(
    self,
    observation: np.ndarray,
    action: np.ndarray,
    step: Any,
    behaviour: np.ndarray,
    core: np.ndarray,
    version: int,
  ) -> int:
    """Adds one step of all environments.

    Args:
      observation: acted on, [K, ...].
      action: as the policy chose it, [K, ...].
      step: what the environments did, a `vector.StepBatch`.
      behaviour: of the policy at this step, [K, A'].
      core: recurrent state before this step, [K, S]; kept at a block's first.
      version: learner steps of the parameters that acted; likewise.

    Returns:
      Number of items written: 0, or 1 with the last step of a block.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
      ValueError: an array does not fit the layout.
    """
    block, t = self._block, self._t
    if t == 0:
      self._check(observation, action, behaviour, core)
      block.core[...] = core
      block.version[...] = version
      block.valid[...] = True
      self._truncated_at.fill(-1)
    block.observation[t] = observation
    block.action[t] = action
    block.reward[t] = step.reward
    block.discount[t] = step.discount
    block.last[t] = step.last
    block.behaviour[t] = behaviour
    if step.valid is not None:
      block.valid[t] = step.valid
    if step.last.any():
      self._take_ends(step)
    self._t = t + 1
    if self._t < self.layout.unroll_length:
      return 0
    block.observation[t + 1] = step.next_observation
    block.written_at[...] = packing.written_now()
    self._t = 0
    self._writer.append(block, 1.0)
    return 1

  def _check(self, *given: np.ndarray) -> None:
    """Raises ValueError where NumPy would broadcast or cut off in silence."""
    block = self._block
    wanted = {
      'observation': block.observation[0],
      'action': block.action[0],
      'behaviour': block.behaviour[0],
      'core': block.core,
    }
    for (name, place), got in zip(wanted.items(), given):
      got = np.asarray(got)
      if got.shape != place.shape or not np.can_cast(
        got.dtype, place.dtype, 'same_kind'
      ):
        raise ValueError(
          f'{name} is {got.dtype} {list(got.shape)}, but this layout needs '
          f'{place.dtype} {list(place.shape)}. Make the layout from the spec '
          'of the environment and from the agent that acts.'
        )

  def _take_ends(self, step: Any) -> None:
    """Keeps the true last observations of episodes cut by a time limit."""
    block, t = self._block, self._t
    cut = step.last & (step.discount > 0) & block.valid[t]
    if not cut.any():
      return
    block.final_observation[cut] = step.observation[cut]
    earlier = self._truncated_at[cut]
    twice = earlier >= 0
    if twice.any():
      block.valid[earlier[twice], np.flatnonzero(cut)[twice]] = False
      self.overwritten += int(twice.sum())
    self._truncated_at[cut] = t

  def flush(self, timeout_s: float | None = None) -> None:
    """Waits until the server has all items; the open block stays open.

    Raises:
      WriteBlocked: timeout_s (None: that of the options) has passed.
    """
    self._writer.flush(timeout_s)

  def reset(self) -> None:
    """Drops the open block: the next step begins another."""
    self._t = 0

  def close(self) -> None:
    """Ends the writer; the open block is dropped."""
    self._writer.close()
