"""Adders turn the steps of K environments into items of a Reverb table.

An item holds single transitions with a priority, a whole population step, or a
block of steps (blocks.py). Transitions are held back and written in bursts,
because each separate append wakes Reverb's threads. writer.py says what an item
costs.
"""

from __future__ import annotations

from collections.abc import Callable
import logging
from typing import Any

import numpy as np
import reverb

from murmuration.replay import blocks
from murmuration.replay import nstep
from murmuration.replay import packing
from murmuration.replay import priorities as priorities_lib
from murmuration.replay import writer as writer_lib

# Transitions written at once, after one call for their priorities.
TRANSITION_BURST = 64
# Population steps written at once.
POPULATION_BURST = 8
# Blocks are large, and each block in flight adds to the policy lag.
BLOCK_OPTIONS = writer_lib.WriteOptions(max_in_flight=2)

_logger = logging.getLogger(__name__)


class _Adder:
  """The writer of an adder's items."""

  def __init__(self, writer: Any):
    self._writer = writer

  @property
  def lost(self) -> int:
    """Items given up because a server went away."""
    return self._writer.lost

  def flush(self) -> None:
    """Waits until the server has all items; unfinished ones stay open.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self._writer.flush()

  def close(self) -> None:
    """Closes the writer; items held back or not confirmed may be lost."""
    self._writer.close()


class TransitionAdder(_Adder):
  """Writes transitions of K environments, one or several to an item.

  An item is one transition [W], or `item_size` successive transitions
  [item_size, W] (those of one step are adjacent), as Reverb's cost of a sample
  is per item. Transitions are held back until `burst` of them are written
  together or `flush` is called: one call computes all their priorities.
  """

  def __init__(
    self,
    client: reverb.Client,
    table: str,
    layout: packing.TransitionLayout,
    n: int,
    gamma: float,
    num_envs: int,
    priority: Callable[[np.ndarray], np.ndarray] | None = None,
    *,
    item_size: int = 1,
    priority_exponent: float = 1.0,
    burst: int = TRANSITION_BURST,
    options: writer_lib.WriteOptions = writer_lib.DEFAULT_OPTIONS,
    ring: Any = None,
    leading: tuple[int, ...] | None = None,
  ):
    """Makes an adder that has seen no step.

    Args:
      client, table: where to write. The table's signature is
        `layout.signature(*leading)`.
      n: steps in a full window.
      gamma: the agent's discount per step.
      num_envs: environments stepped together, K.
      priority: maps packed transitions [M, W] to their priorities [M] >= 0;
        None: each is 1.
      item_size: transitions per item. Fewer are not written, even by `flush`.
      priority_exponent: of the table; combines the priorities of an item's
        transitions (`priorities.of_items`).
      burst: transitions held back and written at once. A rate limiter with a
        ratio needs an error buffer for them.
      ring: a `ring.Ring` that takes the items instead of a server's table.
      leading: axes of an item before the W numbers of a transition; None:
        (item_size,), or () if that is 1.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: the table does not exist, or holds other items.
    """
    if item_size < 1 or burst < 1 or burst % item_size:
      raise ValueError(
        f'burst={burst} must be a multiple of item_size={item_size}, and both '
        'at least 1.'
      )
    if leading is None:
      leading = (item_size,) if item_size > 1 else ()
    # An empty ring is false, so the test is for None.
    if ring is None:
      ring = writer_lib.ItemWriter(
        client,
        table,
        layout.signature(*leading),
        options,
        burst // item_size,
      )
    super().__init__(ring)
    self.window = nstep.NStepWindow(num_envs, n, gamma, layout)
    self._item_shape = (*leading, layout.width)
    self._repair = priorities_lib.Repair(
      table,
      'rewards or observations of the environment that are not finite, or '
      'parameters that diverge',
    )
    self._priority = priority
    self._burst = burst
    self._item_size = item_size
    self._exponent = priority_exponent
    self._held: list[np.ndarray] = []
    self._num_held = 0

  def add(
    self, observation: Any, action: Any, step: Any, version: Any = 0
  ) -> int:
    """Adds one step of all K; returns the number of transitions made.

    For the arguments see `nstep.NStepWindow.observe`.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
      ValueError: a priority is negative, or their number is wrong.
    """
    self.window.observe(observation, action, step, version)
    return self._hold(self.window.finished())

  def _hold(self, transitions: np.ndarray) -> int:
    """Holds transitions [M, W] back, or writes; returns M."""
    made = len(transitions)
    if made:
      self._held.append(transitions)
      self._num_held += made
      if self._num_held >= self._burst:
        # Whole chunks only: ending a chunk early costs more.
        chunk = self._writer.chunk_length * self._item_size
        self._write(self._num_held // chunk * chunk)
    return made

  def _write(self, count: int) -> None:
    """Writes the first `count` transitions that are held back."""
    if not count:
      return
    held = self._held
    packed = held[0] if len(held) == 1 else np.concatenate(held)
    self._held = [packed[count:]] if count < len(packed) else []
    self._num_held -= count
    packed = packed[:count]
    found = np.ones(count) if self._priority is None else self._priority(packed)
    found = priorities_lib.of_items(
      self._repair(found, count), self._item_size, self._exponent
    )
    self._writer.extend(packed.reshape((-1, *self._item_shape)), found.tolist())

  def flush(self) -> None:
    """Writes what is held back in whole items, and waits for the server.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self._write(self._num_held // self._item_size * self._item_size)
    super().flush()

  def reset(self) -> None:
    """Drops unfinished windows: the next step begins new episodes."""
    self.window.reset()


class PopulationAdder(TransitionAdder):
  """Writes each step of P members as one item [P, W].

  A row is the window of one member that started n - 1 steps ago. Until the
  first window is complete, after n steps, nothing is written. Items are held
  back until `burst` of them are written together, or `flush` is called.
  """

  def __init__(
    self,
    client: reverb.Client,
    table: str,
    layout: packing.TransitionLayout,
    n: int,
    gamma: float,
    num_members: int,
    *,
    burst: int = POPULATION_BURST,
    **options: Any,
  ):
    """Makes an adder that has seen no step.

    Each of the `num_members` members, P, has one environment. `burst` counts
    items, and `deadlock.Plan` counts them in the error buffer. `options` are
    those of a `TransitionAdder`.
    """
    super().__init__(
      client,
      table,
      layout,
      n,
      gamma,
      num_members,
      item_size=num_members,
      leading=(num_members,),
      burst=burst * num_members,
      **options,
    )

  def add(
    self, observation: Any, action: Any, step: Any, version: Any = 0
  ) -> int:
    """Adds one step of all members; returns the number of items made.

    This is 1, or 0 in the first n - 1 steps. For the arguments see
    `nstep.NStepWindow.observe`.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self.window.observe(observation, action, step, version)
    if not self.window.ready:
      return 0
    self._hold(self.window.aligned())
    return 1


class BlockAdder(_Adder):
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
    options: writer_lib.WriteOptions = BLOCK_OPTIONS,
    writer: Any = None,
  ):
    """Makes an adder with an empty item.

    Args:
      client, table: where to write, with `layout.signature(joined)`.
      joined: successive blocks in an item.
      options: see `writer.WriteOptions`; start from `BLOCK_OPTIONS`.
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
    super().__init__(writer)

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

  def reset(self) -> None:
    """Drops the open item: the next step begins another."""
    self._t = self._number = 0
