"""Samples for the learner, mixed from the table of each shard.

A tf.data dataset of Reverb ends when its rate limiter makes it wait too long,
and hangs when its server goes away. This sampler outlives both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import logging
import time
from typing import Any
import weakref

import reverb

from replay import readers
from replay import shards
from replay import table_checks

# How often a waiting sampler asks whether to stop, in seconds.
_LOOK_AROUND_S = 0.5
# A shard that gives nothing for so long is asked whether it is there.
_PATIENCE_S = 2.0
# After so long a reader is stuck if its table would give samples. A restart of
# one that is only slow would lose what it has read.
_STUCK_S = 30.0
# Items that each worker of Reverb's asks ahead of a batch, in each shard: fewer
# cost a little more CPU (readers.py). Limiters count them as samples.
MAX_IN_FLIGHT = 1024

Sample = shards.Sample

_logger = logging.getLogger(__name__)


class ShardedSampler:
  """An endless iterator over samples that are mixed evenly from shards.

  A shard that does not answer is left out, and taken back when it gives samples
  again; both are said once in the log. A shard that answers but starves is
  waited for. `next` raises StopIteration when `should_stop()` says so. No item
  is lost while a limiter makes it wait, so queues can be read too.
  """

  def __init__(
    self,
    addresses: Sequence[str],
    table: str,
    batch_size: int,
    *,
    updates: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    max_in_flight: int = MAX_IN_FLIGHT,
    connect_timeout_s: float = 60.0,
    say: Callable[[str], None] = lambda text: None,
    **dataset_options: Any,
  ):
    """Makes a sampler and begins to read ahead.

    Args:
      addresses: of the Reverb server of each shard.
      table: name of the table, the same in every shard.
      batch_size: items of one update, B.
      updates: updates for which one sample serves, U.
      should_stop: asked while there is nothing to return.
      max_in_flight: items of each shard that each of `num_workers` asks ahead,
        beside the sample that is read while the caller works on another.
      connect_timeout_s: how long to wait for a shard that was never there, and
        for any where all are away.
      say: told now and then what a long wait is for.
      **dataset_options: of `readers.make_dataset`.

    Raises:
      ValueError: no address, or a number out of range.
    """
    if isinstance(addresses, str) or not addresses:
      raise ValueError(
        f'addresses={addresses!r} must be a list with the address of each '
        'shard.'
      )
    for name, value in (
      ('updates', updates),
      ('max_in_flight', max_in_flight),
    ):
      if value < 1:
        raise ValueError(f'{name}={value} must be at least 1.')
    if batch_size < len(addresses):
      raise ValueError(
        f'batch_size={batch_size} is less than the {len(addresses)} shards, '
        'of which each gives a part of every batch. Raise batch_size or make '
        'fewer shards.'
      )
    self._table = table
    self._batch_size = batch_size
    self._updates = updates
    self._should_stop = should_stop
    self._connect_timeout_s = connect_timeout_s
    self._say = say
    self._turn = 0
    self._streams = [
      shards.Stream(
        index,
        address,
        functools.partial(
          readers.make_dataset,
          address,
          table,
          # Rounded up: what is over is kept for the next sample.
          -(-updates * batch_size // len(addresses)),
          max_in_flight=max_in_flight,
          **dataset_options,
        ),
      )
      for index, address in enumerate(addresses)
    ]
    # Also runs at the exit of the interpreter, before TensorFlow goes.
    self.close = weakref.finalize(self, _close, self._streams)

  @property
  def living(self) -> list[int]:
    """Indices of the shards that are not left out."""
    return [stream.index for stream in self._streams if stream.living]

  def __iter__(self) -> ShardedSampler:
    return self

  def __next__(self) -> Sample:
    """The next sample; blocks until there is one.

    Raises:
      StopIteration: should_stop() is true and no sample is there.
      ConnectionError: no shard has answered for connect_timeout_s.
      ValueError: see `readers.make_dataset`.
    """
    nobody_since: float | None = None
    asked = away = 0
    while True:
      for stream in self._streams:
        if stream.living:
          continue
        if stream.poll():
          self._take_back(stream)
        elif time.monotonic() - stream.silent_since >= _STUCK_S:
          self._is_back(stream)
      living = [stream for stream in self._streams if stream.living]
      if living:
        nobody_since = None
        places = self._places(len(living))
        hungry = [
          stream
          for stream, place in zip(living, places)
          if stream.num_held < len(place) and not stream.poll()
        ]
        if not hungry:
          if all(s.num_held >= len(p) for s, p in zip(living, places)):
            return self._mix(living, places)
          continue
        if not hungry[0].poll(_LOOK_AROUND_S):
          if self._should_stop():
            raise StopIteration
          self._look_after(hungry[0])
      else:
        nobody_since = nobody_since or time.monotonic()
        if self._should_stop():
          raise StopIteration
        # One at a time: asking a shard that is away takes a second.
        stream = self._streams[asked % len(self._streams)]
        asked += 1
        away = 0 if self._is_back(stream) else away + 1
        if not away:
          nobody_since = None
        elif (
          away >= len(self._streams)
          and time.monotonic() - nobody_since >= self._connect_timeout_s
        ):
          raise self._nobody()
        time.sleep(0.1)

  def _places(self, num_shards: int) -> list[Any]:
    return shards.places(
      num_shards, self._updates, self._batch_size, self._turn % num_shards
    )

  def _mix(self, living: list[shards.Stream], places: list[Any]) -> Sample:
    parts = [
      shards.as_sample(stream.take(len(place)), stream.index, len(living))
      for stream, place in zip(living, places)
    ]
    self._turn += self._updates * (self._batch_size % len(living))
    if len(parts) == 1:
      return parts[0]
    return shards.mix(parts, places, self._updates * self._batch_size)

  def _look_after(self, stream: shards.Stream) -> None:
    """Leaves out a silent shard if it is away; says so if it starves."""
    silent_s = time.monotonic() - stream.silent_since
    patience_s = _PATIENCE_S if stream.seen else self._connect_timeout_s
    if silent_s < min(_PATIENCE_S, patience_s):
      return
    if not self._answers(stream) and silent_s >= patience_s:
      stream.leave_out()
      if not self.living and not stream.seen:
        raise self._nobody()
      _logger.warning(
        'Replay shard %d at %s does not answer: it is left out until it does. '
        '%d of %d shards go on.',
        stream.index,
        stream.address,
        len(self.living),
        len(self._streams),
      )

  def _answers(self, stream: shards.Stream) -> bool:
    """Whether a shard that gives nothing is there. Mends a stuck reader."""
    address = stream.address
    info = table_checks.now(reverb.Client(address), self._table)
    if info is None:
      self._say(f'replay shard {stream.index} at {address} does not answer')
      return False
    why = table_checks.why_starved(self._table, address, info)
    self._say(why)
    if not stream.said_waiting:
      stream.said_waiting = True
      _logger.info('%s', why)
    if not table_checks.lets_through(info):
      stream.silent_since = time.monotonic()  # rightly
    elif time.monotonic() - stream.silent_since >= _STUCK_S:
      # Its server was away for so short a time that it was not left out: the
      # reader still waits for the old one.
      stream.restart()
    return True

  def _is_back(self, stream: shards.Stream) -> bool:
    """Whether a shard that is left out is there again, and has to fill."""
    stuck = time.monotonic() - stream.silent_since >= _STUCK_S
    if self._answers(stream):
      return True
    if stuck or stream.said_waiting:
      # The shard came back and went away again: its reader waits for ever.
      stream.said_waiting = False
      stream.restart()
    return False

  def _take_back(self, stream: shards.Stream) -> None:
    stream.living = True
    _logger.warning(
      'Replay shard %d at %s gives samples again: %d of %d shards.',
      stream.index,
      stream.address,
      len(self.living),
      len(self._streams),
    )

  def _nobody(self) -> ConnectionError:
    addresses = ', '.join(stream.address for stream in self._streams)
    return ConnectionError(
      f'No Reverb server at {addresses} (table {self._table!r}) has answered '
      f'for {self._connect_timeout_s:g} s. Look into the logs of the replay '
      'nodes.'
    )


def _close(streams: list[shards.Stream]) -> None:
  for stream in streams:
    stream.close()
