"""Writes experience to Reverb: single transitions, or whole population steps.

Items go through one streaming writer. Measured here for float32 [16, 11] items
into a server in the same process: Client.insert 530 us per item,
TrajectoryWriter 51 us, StructuredWriter 30 us, and 28 us for what is done here:
TrajectoryWriter without its Python layer. StructuredWriter cannot be closed
while its table blocks, and has no priorities of its own per item. An item
appended now and then wakes Reverb's threads each time (CPU 110 us); of 16
appended in a row, each takes half of that.
"""

from collections.abc import Callable
import dataclasses
import math
import time
from typing import Any
import weakref

import numpy as np
import reverb
import tensorflow as tf

from replay import nstep
from replay import packing

# Items unconfirmed by the server. Half of them are waited for when the bound is
# reached: a wait at every item would cost the writer a round trip each.
MAX_IN_FLIGHT = 200
# Population steps appended in one go.
BURST = 8
# How often a blocked writer looks whether it should stop, in seconds.
_WAIT_S = 0.5

Priority = float | Callable[[np.ndarray], np.ndarray]


class WriteBlocked(RuntimeError):
  """The table did not take items in time: its limiter blocks, or no server."""


@dataclasses.dataclass(frozen=True)
class WriteOptions:
  """How a writer deals with a slow, full or absent table.

  Attributes:
    max_in_flight: items that may be unconfirmed by the server at once.
    timeout_s: how long `add` waits for a blocked table.
    connect_timeout_s: how long a new adder waits for its server.
    should_stop: ends a wait early, without an error.
  """

  max_in_flight: int = MAX_IN_FLIGHT
  timeout_s: float = 60.0
  connect_timeout_s: int = 60
  should_stop: Callable[[], bool] = lambda: False


class _Writer:
  """A Reverb writer with a bounded number of items in flight."""

  def __init__(
    self,
    client: reverb.Client,
    table: str,
    signature: tf.TensorSpec,
    options: WriteOptions,
  ):
    if options.max_in_flight < 1:
      raise ValueError(
        f'max_in_flight={options.max_in_flight} must be at least 1 item.'
      )
    self._client = client
    self._table = table
    self._options = options
    self._unconfirmed = 0
    self._check_table(signature)
    writer = client.trajectory_writer(num_keep_alive_refs=1)
    self._flush = writer.flush
    # Reverb's binding: the Python layer above it, made for nested steps and
    # histories, would double the cost of an item.
    self._append = writer._writer.Append
    self._create_item = writer._writer.CreateItem
    # An unclosed writer waits in its destructor, with the GIL, until the table
    # takes its items: a process would never end when the server went first.
    self.close = weakref.finalize(self, writer.close)

  def append(self, item: np.ndarray, priority: float) -> None:
    """Writes one item; waits where too many are unconfirmed."""
    cells = self._append([item])
    # One column of one step, squeezed: an item without a time axis.
    self._create_item(self._table, priority, [cells], [True])
    self._unconfirmed += 1
    if self._unconfirmed >= self._options.max_in_flight:
      self.flush(self._options.timeout_s, self._options.max_in_flight // 2)

  def flush(self, timeout_s: float, leave: int = 0) -> None:
    """Waits until at most `leave` items are unconfirmed, or a stop request.

    Raises:
      WriteBlocked: timeout_s has passed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
      left_s = deadline - time.monotonic()
      wait_ms = max(1, math.ceil(1000 * min(_WAIT_S, left_s)))
      try:
        self._flush(leave, timeout_ms=wait_ms)
        self._unconfirmed = min(self._unconfirmed, leave)
        return
      except reverb.errors.DeadlineExceededError as e:
        if self._options.should_stop():
          return
        if time.monotonic() >= deadline:
          raise WriteBlocked(self._reason(timeout_s)) from e

  def _check_table(self, wanted: tf.TensorSpec) -> None:
    address = self._client.server_address
    timeout_s = self._options.connect_timeout_s
    try:
      tables = self._client.server_info(timeout=timeout_s)
    except (RuntimeError, reverb.errors.DeadlineExceededError) as e:
      raise ConnectionError(
        f'The Reverb server at {address} did not answer within {timeout_s} s. '
        'Start it first, or correct the address.'
      ) from e
    if self._table not in tables:
      raise ValueError(
        f'The Reverb server at {address} has no table {self._table!r}, only '
        f'{", ".join(sorted(tables)) or "none"}. Write to one of these.'
      )
    got = tables[self._table].signature
    if got is not None and not (
      isinstance(got, tf.TensorSpec) and got.is_compatible_with(wanted)
    ):
      raise ValueError(
        f'Table {self._table!r} holds {got}, but this adder writes {wanted}. '
        'Make the table with the signature of the same layout and number of '
        'members.'
      )

  def _reason(self, timeout_s: float) -> str:
    address = self._client.server_address
    try:
      info = self._client.server_info(timeout=1)[self._table]
    except (RuntimeError, reverb.errors.DeadlineExceededError):
      return (
        f'No item reached table {self._table!r} within {timeout_s:g} s: the '
        f'Reverb server at {address} does not answer. Look into the log of the '
        'replay node.'
      )
    except KeyError:
      return (
        f'The Reverb server at {address} has no table {self._table!r}. Write '
        'to one of the tables that it was made with.'
      )
    limiter = info.rate_limiter_info
    return (
      f'Table {self._table!r} at {address} took no item for {timeout_s:g} s: '
      f'its rate limiter (samples_per_insert={limiter.samples_per_insert:g}, '
      f'min_size={limiter.min_size_to_sample}, min_diff={limiter.min_diff:g}, '
      f'max_diff={limiter.max_diff:g}) blocks inserts at size '
      f'{info.current_size} of {info.max_size}, after '
      f'{limiter.insert_stats.completed} inserts and '
      f'{limiter.sample_stats.completed} samples. Sample from it, or raise the '
      'error buffer or the size of the table.'
    )


class TransitionAdder:
  """Writes each transition of K environments as one item [W]."""

  def __init__(
    self,
    client: reverb.Client,
    table: str,
    layout: packing.TransitionLayout,
    n: int,
    gamma: float,
    num_envs: int,
    start_partials: bool = False,
    priority: Priority = 1.0,
    *,
    options: WriteOptions = WriteOptions(),
  ):
    """Makes an adder that has seen no step.

    Args:
      client: client of the server that holds the table.
      table: name of the table; its items are `layout.signature()`.
      layout: how transitions are packed.
      n: steps in a full window.
      gamma: the agent's discount per step.
      num_envs: environments stepped together, K.
      start_partials: see `nstep.NStepWindow.finished`.
      priority: of every item, or a function of packed transitions [M, W] that
        returns the priorities [M].
      options: see `WriteOptions`.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: no such table, or one of other items.
    """
    self.window = nstep.NStepWindow(num_envs, n, gamma, layout)
    self._start_partials = start_partials
    self._priority = priority
    self._writer = _Writer(client, table, layout.signature(), options)

  def add(self, observation: Any, action: Any, step: Any) -> int:
    """Adds one step of all environments; see `nstep.NStepWindow.observe`.

    Returns:
      Number of items written.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self.window.observe(observation, action, step)
    transitions = self.window.finished(self._start_partials)
    priorities: Any = self._priority
    if callable(priorities):
      priorities = priorities(transitions)
    priorities = np.broadcast_to(priorities, len(transitions)).tolist()
    for transition, priority in zip(transitions, priorities, strict=True):
      self._writer.append(transition, priority)
    return len(transitions)

  def flush(self, timeout_s: float = 10.0) -> None:
    """Waits until the server has all items. Unfinished windows stay open.

    Raises:
      WriteBlocked: timeout_s has passed.
    """
    self._writer.flush(timeout_s)

  def reset(self) -> None:
    """Drops unfinished windows: the next step begins new episodes."""
    self.window.reset()

  def close(self) -> None:
    """Ends the writer; items that the server has not confirmed may be lost."""
    self._writer.close()


class PopulationAdder:
  """Writes each step of P members as one item [P, W]: an append for all.

  A row is the window of that member which started n - 1 steps ago. The first
  n - 1 steps write nothing, as no window of any member is complete. Items are
  held back until `burst` of them can go together, or `flush` is called.
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
    burst: int = BURST,
    options: WriteOptions = WriteOptions(),
  ):
    """Makes an adder that has seen no step.

    Args:
      client: client of the server that holds the table.
      table: name of the table; its items are `layout.signature(num_members)`.
      layout: how transitions are packed.
      n: steps in a full window.
      gamma: the agent's discount per step.
      num_members: members of the population, P, one environment each.
      burst: items written in one go. A rate limiter with a ratio must have an
        error buffer for them: count them as writers in limiters.py.
      options: see `WriteOptions`.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: no such table, or one of other items.
    """
    if burst < 1:
      raise ValueError(f'burst={burst} must be at least 1 item.')
    self.window = nstep.NStepWindow(num_members, n, gamma, layout)
    self._burst = burst
    self._held: list[np.ndarray] = []
    self._writer = _Writer(
      client, table, layout.signature(num_members), options
    )

  def add(self, observation: Any, action: Any, step: Any) -> int:
    """Adds one step of all members; see `nstep.NStepWindow.observe`.

    Returns:
      Number of items made: 1, or 0 in the first n - 1 steps.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
    """
    self.window.observe(observation, action, step)
    if not self.window.ready:
      return 0
    self._held.append(self.window.aligned())
    if len(self._held) >= self._burst:
      self._write()
    return 1

  def _write(self) -> None:
    held, self._held = self._held, []
    for item in held:
      self._writer.append(item, 1.0)

  def flush(self, timeout_s: float = 10.0) -> None:
    """Waits until the server has all items. Unfinished windows stay open.

    Raises:
      WriteBlocked: timeout_s has passed.
    """
    self._write()
    self._writer.flush(timeout_s)

  def reset(self) -> None:
    """Drops unfinished windows: the next step begins new episodes."""
    self.window.reset()

  def close(self) -> None:
    """Ends the writer; items that the server has not confirmed may be lost."""
    self._writer.close()
