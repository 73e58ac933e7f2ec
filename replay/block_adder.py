"""Writes the blocks of blocks.py."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import reverb

from replay import blocks
from replay import packing
from replay import writer as writer_lib

# Blocks are large, and each block in flight adds to the policy lag.
OPTIONS = writer_lib.WriteOptions(max_in_flight=2)

_logger = logging.getLogger(__name__)


class BlockAdder:
  """Writes T steps of K environments as one item.

  An unfinished block is never written; it is lost with its actor.

  A block has room for one true final observation per environment at a time
  limit. If an environment reaches a second limit within T steps, the step of
  the earlier end is marked invalid, because its bootstrap observation is lost.
  """

  def __init__(
    self,
    client: reverb.Client | None,
    table: str,
    layout: blocks.BlockLayout,
    *,
    options: writer_lib.WriteOptions = OPTIONS,
    writer: Any = None,
  ):
    """Makes an adder with an empty block.

    Args:
      client, table: where to write; the signature is `layout.signature()`.
      options: see `writer.WriteOptions`; start from `OPTIONS`.
      writer: takes the blocks instead of the table, as an `ItemWriter` does. It
        must copy them, because the block is reused.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: the table does not exist, or holds other items.
    """
    self.layout = layout
    self._block = layout.zeros()
    self._t = 0
    self._said = False
    self._truncated_at = np.full(layout.num_envs, -1)
    self._known: list[Any] = []  # shapes and dtypes known to fit
    if writer is None:
      assert client is not None, 'without a writer it needs a server'
      writer = writer_lib.ItemWriter(client, table, layout.signature(), options)
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
    """Adds one step of all environments; returns 1 if it wrote a block, else 0.

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
    if np.count_nonzero(step.last):
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
    """Raises ValueError where NumPy would silently broadcast or truncate."""
    known = [(array.shape, array.dtype) for array in given]
    if known == self._known:
      return
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
    self._known = known

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
      if not self._said:
        self._said = True
        _logger.warning(
          'An environment was cut by its time limit twice within %d steps, and '
          'a block keeps one true end: the step of the earlier one is not '
          'learned from. A shorter unroll_length keeps all. Said once.',
          self.layout.unroll_length,
        )
    self._truncated_at[cut] = t

  def flush(self) -> None:
    """Waits until the server has all items; the open block stays open.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self._writer.flush()

  def reset(self) -> None:
    """Drops the open block: the next step begins another."""
    self._t = 0

  def close(self) -> None:
    """Closes the writer and drops the open block."""
    self._writer.close()
