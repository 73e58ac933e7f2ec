"""Adders turn the steps of K environments into items of a Reverb table.

An item holds single transitions with a priority, or a whole population step.
Adders hold items back and write them in bursts, because each separate append
wakes Reverb's threads. writer.py says what an item costs.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb

from murmuration.replay import nstep
from murmuration.replay import packing
from murmuration.replay import priorities as priorities_lib
from murmuration.replay import writer

# Transitions written at once, after one call for their priorities.
TRANSITION_BURST = 64
# Population steps written at once.
POPULATION_BURST = 8


class _Adder(abc.ABC):
  """A window over environments, and the writer of its items."""

  def __init__(
    self,
    window: nstep.NStepWindow,
    client: reverb.Client,
    table: str,
    signature: Any,
    options: writer.WriteOptions,
    burst: int,
    ring: Any,
  ):
    self.window = window
    # An empty ring is false, so the test is for None.
    self._writer = (
      ring
      if ring is not None
      else writer.ItemWriter(client, table, signature, options, burst)
    )

  @property
  def lost(self) -> int:
    """Items given up because a server went away."""
    return self._writer.lost

  @abc.abstractmethod
  def _write_held(self) -> None:
    """Writes what is held back, in whole items."""

  def flush(self) -> None:
    """Waits until the server has all items; unfinished ones stay open.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self._write_held()
    self._writer.flush()

  def reset(self) -> None:
    """Drops unfinished windows: the next step begins new episodes."""
    self.window.reset()

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
    options: writer.WriteOptions = writer.DEFAULT_OPTIONS,
    ring: Any = None,
  ):
    """Makes an adder that has seen no step.

    Args:
      client, table: where to write. The table's signature is
        `layout.signature()`, or `layout.signature(item_size)` if item_size > 1.
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

    Raises:
      ConnectionError: the server does not answer.
      ValueError: the table does not exist, or holds other items.
    """
    if item_size < 1 or burst < 1 or burst % item_size:
      raise ValueError(
        f'burst={burst} must be a multiple of item_size={item_size}, and both '
        'at least 1.'
      )
    self._item_shape: tuple[int, ...] = (layout.width,)
    if item_size > 1:
      self._item_shape = (item_size, layout.width)
    super().__init__(
      nstep.NStepWindow(num_envs, n, gamma, layout),
      client,
      table,
      layout.signature(*self._item_shape[:-1]),
      options,
      burst // item_size,
      ring,
    )
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
    transitions = self.window.finished()
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

  def _write_held(self) -> None:
    self._write(self._num_held // self._item_size * self._item_size)


class PopulationAdder(_Adder):
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
    options: writer.WriteOptions = writer.DEFAULT_OPTIONS,
    ring: Any = None,
  ):
    """Makes an adder that has seen no step; see `TransitionAdder`.

    Each of the `num_members` members, P, has one environment. The table's
    signature is `layout.signature(num_members)`. `burst` counts items, and
    `deadlock.Plan` counts them in the error buffer.
    """
    if burst < 1:
      raise ValueError(f'burst={burst} must be at least 1 item.')
    super().__init__(
      nstep.NStepWindow(num_members, n, gamma, layout),
      client,
      table,
      layout.signature(num_members),
      options,
      burst,
      ring,
    )
    self._burst = burst
    self._held: list[np.ndarray] = []

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
    self._held.append(self.window.aligned())
    if len(self._held) >= self._burst:
      self._write_held()
    return 1

  def _write_held(self) -> None:
    if not self._held:
      return
    held, self._held = self._held, []
    self._writer.extend(np.stack(held), [1.0] * len(held))
