"""Writes items to a Reverb table, with a bound on unconfirmed items.

CPU per item of writer and server together, in us, for float32 [14] items and a
server in another process; the lowest of 10 to 14 rounds on a busy machine.
"paced": bursts of 64 items with 0.6 ms of other work between them. "sample":
CPU of a sample in the server's process (lowest quarter of 24).

  chunk_length   1     8     16    32
  flat out       17.0  15.8  14.3  13.3
  paced          38.5  -     22.9  17.7
  sample         4.4   4.7   4.7   5.0

Reverb compresses and stores a chunk as one unit. The items of its rows share
it, and each sample of an item decompresses all of it. A chunk of many rows is
cheap to write but, if rows are large, expensive to sample: over gRPC, rows of
240 bytes cost 16 us per sample in chunks of 8 and 25 us in chunks of 32.

With 48 items in flight, a writer waits for its server at each burst: 16.4 us
flat out in chunks of 16, where 200 in flight took 10.6 us in the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import logging
import math
import time
from typing import Any
import weakref

import numpy as np
import reverb
import tensorflow as tf

from murmuration.replay import stderr
from murmuration.replay import table_checks

# Limit of items that the server has not confirmed. At the limit a writer waits
# for half of them: a wait for each item would cost a round trip each.
MAX_IN_FLIGHT = 200
# Limits of a chunk, in rows and in bytes before compression; see above.
CHUNK_LENGTH = 32
CHUNK_BYTES = 2048
# From this many unconfirmed items on, Reverb logs a warning for every 10 items.
_REVERB_COMPLAINS = 50
# Seconds between two checks of `should_stop` while a writer is blocked.
_WAIT_S = 0.5
# Seconds of waiting after which the writer asks the server for its state.
_PATIENCE_S = 2.0
# Seconds of waiting before the first warning; the interval then doubles.
_SAY_S = 15.0
# Reverb's writer reconnects by itself within about 11 s, if the server was away
# for less than 30 s. A writer that has not done so after this time is replaced.
_REJOIN_S = 15.0

_logger = logging.getLogger(__name__)


class WriteBlocked(RuntimeError):
  """The table took no items in time: blocked by its limiter, or unreachable."""


@dataclasses.dataclass(frozen=True)
class WriteOptions:
  """How a writer deals with a slow, full or absent table.

  Attributes:
    max_in_flight: unconfirmed items at which a write waits. Rows too large to
      share a chunk are written 32 at a time and may exceed it.
    timeout_s: how long to wait for a table that takes no items, or for its
      server, at the start or after it went away.
    should_stop: ends a wait early; an error only if no server ever answered.
    say: called repeatedly during a long wait with its cause.
  """

  max_in_flight: int = MAX_IN_FLIGHT
  timeout_s: float = 60.0
  should_stop: Callable[[], bool] = lambda: False
  say: Callable[[str], None] = lambda text: None

  def __post_init__(self):
    if self.max_in_flight < 1:
      raise ValueError(
        f'max_in_flight={self.max_in_flight} must be at least 1 item.'
      )


def chunk_length(num_bytes: int) -> int:
  """Number of rows of `num_bytes` each that should share a chunk."""
  return max(1, min(CHUNK_LENGTH, CHUNK_BYTES // max(1, num_bytes)))


DEFAULT_OPTIONS = WriteOptions()


class ItemWriter:
  """Writes items of one step; an item's columns have no time axis.

  The writer survives a server that dies and comes back at its address. Reverb
  then resends unconfirmed items; they are lost only if that fails.

  Attributes:
    lost: items given up because of the server; not items that a table lost.
    chunk_length: rows that `extend` stores together.
  """

  def __init__(
    self,
    client: reverb.Client,
    table: str,
    signature: Any,
    options: WriteOptions = DEFAULT_OPTIONS,
    burst: int = CHUNK_LENGTH,
  ):
    """Connects.

    Args:
      signature: (nested) tf.TensorSpec of an item.
      burst: rows written together; a chunk has at most as many, so that none
        has to be ended early.

    Raises:
      ConnectionError: the server does not answer.
      ValueError: the table does not exist, or holds other items.
    """
    self.lost = 0
    self._client = client
    self._table = table
    self._options = options
    specs = tf.nest.flatten(signature)
    self._squeezed = [True] * len(specs)
    self.chunk_length = 1
    if len(specs) == 1:
      row_bytes = specs[0].dtype.size * (specs[0].shape.num_elements() or 1)
      # Two chunks fit in flight: otherwise each would wait for the one before.
      most = max(1, options.max_in_flight // 2)
      self.chunk_length = min(chunk_length(row_bytes), burst, most)
    # Rows of their own chunks, written between two checks of the limit.
    self._loose_rows = min(CHUNK_LENGTH, options.max_in_flight)
    self._unconfirmed = 0
    # Monotonic times at which the server was first seen away, and seen back.
    self._away_since: float | None = None
    self._back_since: float | None = None
    if options.max_in_flight >= _REVERB_COMPLAINS:
      stderr.drop_notes_of_writers()
    table_checks.signature(
      client,
      table,
      signature,
      options.timeout_s,
      options.should_stop,
      options.say,
    )
    self._open()

  def _open(self) -> None:
    # Uses Reverb's binding: the Python layer above it is made for nested steps
    # and histories, and would double the cost of an item.
    length = self.chunk_length
    self._writer = self._client._client.NewTrajectoryWriter(
      reverb.pybind.ConstantChunkerOptions(length, length), True
    )
    # The destructor of an unclosed writer holds the GIL and waits until the
    # table takes its items: without a server, the process would never end.
    self._finalize = weakref.finalize(self, self._writer.Close)

  def append(self, columns: Any, priority: float) -> None:
    """Writes one item; waits if too many are unconfirmed.

    Args:
      columns: arrays in the flattened order of the signature. They are copied.
      priority: at least 0.

    Raises:
      WriteBlocked: the table took no items for timeout_s.
      ValueError: the columns do not fit the signature.
    """
    self._write(self._put_item, list(columns), priority, 1)

  def extend(self, rows: np.ndarray, priorities: Sequence[float]) -> None:
    """Writes rows [M, ...] as M items of one column, several to a chunk.

    `priorities` are M floats of at least 0.

    Raises:
      WriteBlocked, ValueError: see `append`.
    """
    length, put = self.chunk_length, self._put_chunk
    if length == 1:
      length, put = self._loose_rows, self._put_loose
    for start in range(0, len(rows), length):
      part = rows[start : start + length]
      self._write(put, part, priorities[start : start + length], len(part))

  def _put_item(self, columns: list[np.ndarray], priority: float) -> None:
    cells = self._writer.Append(columns)
    self._writer.CreateItem(
      self._table, priority, [[cell] for cell in cells], self._squeezed
    )
    if self.chunk_length > 1:
      self._end_chunk()

  def _put_loose(self, rows: np.ndarray, priorities: Sequence[float]) -> None:
    append, create = self._writer.Append, self._writer.CreateItem
    table, squeezed = self._table, self._squeezed
    for row, priority in zip(rows, priorities):
      create(table, priority, [append([row])], squeezed)

  def _put_chunk(self, rows: np.ndarray, priorities: Sequence[float]) -> None:
    # Reverb's thread sends what is in its queue, often one item at a time, but
    # never an item before its chunk is full. So all items of a chunk wait for
    # the last row, and are then sent together.
    append, create = self._writer.Append, self._writer.CreateItem
    table, squeezed = self._table, self._squeezed
    cells = [append([row]) for row in rows[:-1]]
    for cell, priority in zip(cells, priorities):
      create(table, priority, [cell], squeezed)
    create(table, priorities[-1], [append([rows[-1]])], squeezed)
    if len(rows) < self.chunk_length:
      self._end_chunk()

  def _end_chunk(self) -> None:
    """Ends a chunk that is not full, so that its items can be sent."""
    try:
      # Waits 1 ms for the server; 0 would mean no limit.
      self._writer.Flush(0, 1)
    except RuntimeError as e:
      if not _is_timeout(e):
        raise

  def _write(
    self, put: Callable[..., None], data: Any, priority: Any, num_items: int
  ) -> None:
    try:
      put(data, priority)
    except RuntimeError as e:
      # Reverb's writer has given up: it sent nothing of this call.
      if not self._replace(e, time.monotonic() + self._options.timeout_s):
        self.lost += num_items
        return
      put(data, priority)
    self._unconfirmed += num_items
    most = self._options.max_in_flight
    if self._unconfirmed + self.chunk_length > most:
      self.flush(most // 2)

  def flush(self, leave: int = 0) -> None:
    """Waits until at most `leave` items are unconfirmed, or a stop request.

    Raises:
      WriteBlocked: timeout_s has passed.
    """
    timeout_s = self._options.timeout_s
    start = time.monotonic()
    deadline, say_after_s = start + timeout_s, _SAY_S
    while True:
      left_s = deadline - time.monotonic()
      wait_ms = max(1, math.ceil(1000 * min(_WAIT_S, left_s)))
      try:
        self._writer.Flush(leave, wait_ms)
        self._unconfirmed = min(self._unconfirmed, leave)
        self._seen_back()
        return
      except RuntimeError as e:
        if self._options.should_stop():
          return
        if not _is_timeout(e):
          if not self._replace(e, deadline):
            return
          continue
      now = time.monotonic()
      if now >= deadline:
        raise self._blocked(timeout_s)
      if now - start < _PATIENCE_S:
        continue
      self._look(now, deadline)
      why = self._why()
      self._options.say(why)
      if now - start >= say_after_s:
        say_after_s *= 2
        _logger.warning('Still waiting to write. %s', why)

  def close(self) -> None:
    """Closes the writer; items not confirmed by the server may be lost."""
    self._finalize()

  def _look(self, now: float, deadline: float) -> None:
    """Checks for the server; replaces a writer that does not reconnect."""
    if table_checks.now(self._client, self._table) is not None:
      if self._away_since is None:
        return  # The server answers; its table takes no items.
      self._back_since = self._back_since or now
      if now - self._back_since > _REJOIN_S:
        lost = RuntimeError('it did not find the server again')
        self._replace(lost, deadline)
      return
    self._back_since = None
    if self._away_since is None:
      self._away_since = now
      _logger.warning(
        'The Reverb server at %s does not answer: %d items for table %r wait '
        'for it.',
        self._client.server_address,
        self._unconfirmed,
        self._table,
      )

  def _seen_back(self) -> None:
    """Records that the server takes items; logs it if the server was away."""
    if self._away_since is None:
      return
    away_s = time.monotonic() - self._away_since
    self._away_since = self._back_since = None
    _logger.warning(
      'The Reverb server at %s is back after %.0f s: table %r takes items '
      'again, and %d were lost on the way so far.',
      self._client.server_address,
      away_s,
      self._table,
      self.lost,
    )

  def _replace(self, error: RuntimeError, deadline: float) -> bool:
    """Makes a new writer once the server answers; False if asked to stop.

    Raises WriteBlocked if the server does not answer before the deadline.
    """
    start = time.monotonic()
    self._away_since = self._away_since or start
    options = self._options
    try:
      table_checks.tables(
        self._client, deadline - start, options.should_stop, options.say
      )
    except ConnectionError:
      if options.should_stop():
        return False
      waited_s = time.monotonic() - (deadline - options.timeout_s)
      raise self._blocked(waited_s) from error
    self._finalize()
    self._open()
    lost, self._unconfirmed = self._unconfirmed, 0
    self.lost += lost
    _logger.warning(
      'The writer to table %r at %s was lost (%s): %d items that the server '
      'had not confirmed are gone, the next go through another one.',
      self._table,
      self._client.server_address,
      str(error).splitlines()[0],
      lost,
    )
    self._seen_back()
    return True

  def _blocked(self, waited_s: float) -> WriteBlocked:
    return WriteBlocked(f'No item was taken in {waited_s:.3g} s. {self._why()}')

  def _why(self) -> str:
    info = table_checks.now(self._client, self._table)
    return table_checks.why(self._table, self._client.server_address, info)


def _is_timeout(error: RuntimeError) -> bool:
  return 'Timeout exceeded' in str(error)
