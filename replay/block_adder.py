"""Writes the blocks of blocks.py."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import reverb

from murmuration.replay import blocks
from murmuration.replay import packing
from murmuration.replay import writer as writer_lib

# Blocks are large, and each block in flight adds to the policy lag.
OPTIONS = writer_lib.WriteOptions(max_in_flight=2)

_logger = logging.getLogger(__name__)


class BlockAdder:
  """Writes T steps of K environments as one block; an item has one or more.

  An unfinished item is never written; it is lost with its actor.

  A block has room for `max_truncations` true final observations of each
  environment. If an environment truncates episodes more often than its time
  limit says, the last step of the others is marked invalid, because their
  bootstrap observation is lost.
  """

  def __init__(
    self,
    client: reverb.Client | None,
    table: str,
    layout: blocks.BlockLayout,
    *,
    joined: int = 1,
    options: writer_lib.WriteOptions = OPTIONS,
    writer: Any = None,
  ):
    """Makes an adder with an empty item.

    Args:
      client, table: where to write, with `layout.signature(joined)`.
      joined: successive blocks in an item.
      options: see `writer.WriteOptions`; start from `OPTIONS`.
      writer: takes the items instead of the table, as an `ItemWriter` does. It
        must copy them, because the arrays are reused.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: the table does not exist, or holds other items.
    """
    self.layout = layout
    self._item = layout.item(joined)
    self._blocks = [self._item]
    if joined > 1:
      # Views of it, of version and written_at too.
      self._blocks = [
        blocks.Block(*(column[index, ...] for column in self._item))
        for index in range(joined)
      ]
    self._number = 0  # of the open block in the item
    self._t = 0
    self._said = False
    self._truncations = np.zeros(layout.num_envs, int)  # in the open block
    self._known: list[Any] = []  # shapes and dtypes known to fit
    if writer is None:
      assert client is not None, 'without a writer it needs a server'
      writer = writer_lib.ItemWriter(
        client, table, layout.signature(joined), options
      )
    self._writer = writer

  @property
  def lost(self) -> int:
    """Items given up because the server went away."""
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
    """Adds one step of all environments; returns 1 if it wrote an item, else 0.

    Args:
      observation: acted on, [K, ...].
      action: as the policy chose it, [K, ...].
      step: the result, a `vector.StepBatch`.
      behaviour: of the policy at this step, [K, A'].
      core: recurrent state before this step, [K, S]; kept at a block's start.
      version: learner steps of the acting parameters; kept at a block's start.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
      ValueError: an array does not fit the layout.
    """
    block, t = self._blocks[self._number], self._t
    if t == 0:
      self._check(observation, action, behaviour, core)
      block.core[...] = core
      block.version[...] = version
      block.valid[...] = True
      self._truncations.fill(0)
    block.observation[t] = observation
    block.action[t] = action
    block.reward[t] = step.reward
    block.discount[t] = step.discount
    block.last[t] = step.last
    block.behaviour[t] = behaviour
    if step.valid is not None:
      block.valid[t] = step.valid
    if np.count_nonzero(step.last):
      self._take_ends(block, step)
    self._t = t + 1
    if self._t < self.layout.unroll_length:
      return 0
    block.observation[t + 1] = step.next_observation
    block.written_at[...] = packing.written_now()
    self._t = 0
    self._number += 1
    if self._number < len(self._blocks):
      return 0
    self._number = 0
    self._writer.append(self._item, 1.0)
    return 1

  def _check(self, *given: np.ndarray) -> None:
    """Raises ValueError where NumPy would silently broadcast or truncate."""
    known = [(array.shape, array.dtype) for array in given]
    if known == self._known:
      return
    block = self._blocks[0]
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
    self._known = known

  def _take_ends(self, block: blocks.Block, step: Any) -> None:
    """Keeps the true last observations of episodes cut by a time limit."""
    valid = block.valid[self._t]
    cut = np.flatnonzero(step.last & (step.discount > 0) & valid)
    if not cut.size:
      return
    number = self._truncations[cut]
    room = number < len(block.final_observation)
    if not room.all():
      valid[cut[~room]] = False
      cut, number = cut[room], number[room]
      if not self._said:
        self._said = True
        _logger.warning(
          'An environment truncated more than %d of its episodes within '
          'unroll_length=%d steps: the last steps of the others are not '
          'learned from. Declare its time limit as max_episode_steps, or '
          'shorten unroll_length. Said once.',
          self.layout.max_truncations,
          self.layout.unroll_length,
        )
    block.final_observation[number, cut] = step.observation[cut]
    self._truncations[cut] = number + 1

  def flush(self) -> None:
    """Waits until the server has all items; the open item stays open.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self._writer.flush()

  def reset(self) -> None:
    """Drops the open item: the next step begins another."""
    self._t = self._number = 0

  def close(self) -> None:
    """Closes the writer and drops the open item."""
    self._writer.close()
