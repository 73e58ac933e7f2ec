"""Samples for the learner, mixed from the table of each shard.

Reverb's own tf.data dataset ends at a timeout of its rate limiter, and hangs
when its server goes away. This sampler survives both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import logging
import time
from typing import Any
import weakref

import reverb

from murmuration.replay import readers
from murmuration.replay import shards
from murmuration.replay import table_checks

# Seconds between a waiting sampler's calls of `should_stop`.
_LOOK_AROUND_S = 0.5
# Seconds of silence after which a shard is asked whether it is there.
_PATIENCE_S = 2.0
# A reader that is silent for this long is stuck, if its table would give
# samples. Restarting one that is only slow would lose what it has read.
_STUCK_S = 30.0
# Items that each worker requests ahead of a batch, in each shard; fewer cost a
# little more CPU (readers.py). Rate limiters count them as samples.
MAX_IN_FLIGHT = 1024

Sample = shards.Sample

_logger = logging.getLogger(__name__)


class ShardedSampler:
  """An endless iterator over samples that are mixed evenly from shards.

  A shard that does not answer is left out until it gives samples again; the log
  says so once for each change. A shard that answers but has no samples is
  waited for. `next` raises StopIteration if it has to wait and `should_stop()`
  is true. A limiter that makes it wait costs no item, so it can also read
  queues.
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
    """Makes a sampler and starts to read ahead.

    Args:
      addresses: Reverb server of each shard.
      batch_size: items of one update, B.
      updates: number of updates in one sample, U.
      should_stop: called while there is nothing to return.
      max_in_flight: items of each shard that each of `num_workers` requests
        ahead, besides the sample that is read while the caller uses another.
      connect_timeout_s: how long to wait for a shard that was never there, and
        for any shard if all are away.
      say: called from time to time with what a long wait is for.
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
          # Rounded up: the surplus is kept for the next sample.
          -(-updates * batch_size // len(addresses)),
          max_in_flight=max_in_flight,
          **dataset_options,
        ),
      )
      for index, address in enumerate(addresses)
    ]
    # Also runs at interpreter exit, before TensorFlow is unloaded.
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
      StopIteration: should_stop() is true and no sample is available.
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
        # One shard at a time: asking one that is away takes a second.
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
    """Leaves out a silent shard that is away; reports one that starves."""
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
    """Whether a silent shard answers. Restarts its reader if that is stuck."""
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
      stream.silent_since = time.monotonic()  # its limiter is the reason
    elif time.monotonic() - stream.silent_since >= _STUCK_S:
      # Its server was away too briefly to be left out, and the reader still
      # waits for the old one.
      stream.restart()
    return True

  def _is_back(self, stream: shards.Stream) -> bool:
    """Whether a shard that was left out answers, with samples or without."""
    stuck = time.monotonic() - stream.silent_since >= _STUCK_S
    if self._answers(stream):
      return True
    if stuck or stream.said_waiting:
      # The shard came back and went away again: its reader would wait forever.
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
