"""A node's reports to the counter, once per second.

An unavailable counter does not stall learning: the counts of failed reports are
added up, rows are kept, and both are sent again with a back-off.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
import logging
import os
import re
import time
from typing import Any

from launch import pulse
from launch import rpc

_logger = logging.getLogger(__name__)
_PERIOD_S = 1.0
_DEADLINE_S = 1.0
_BACKOFF_CAP_S = 5.0
# Counts that show progress of the run. A supervisor's counts do not: it plays
# with theta_star for ever.
_MOVES = ('actor_steps', 'learner_steps', 'samples')
# At its start a node has nothing else to do, so it waits for a counter that is
# busy with other nodes or being restarted.
_START_DEADLINE_S = 10.0
_START_PATIENCE_S = 30.0
_MOST_ROWS = 1000  # that wait for the counter


class Reporter:
  """Sends increments and metrics of one node to the counter."""

  def __init__(
    self, node: str, counter: Any, clock: Callable[[], float] = time.monotonic
  ):
    """Makes the reporter of `node`, such as 'explorer/0'.

    `counter` is a client of services.counter.Counter.
    """
    self.node = node
    self.finished = False
    self._counter = counter.with_deadline(_DEADLINE_S)
    self._clock = clock
    self._remarked: set[str] = set()
    # Arguments of a `finish` that the counter has not received yet.
    self._goal: tuple[str, Mapping[str, Any]] | None = None
    self._pending: collections.Counter[str] = collections.Counter()
    # The acknowledged counts of this start of the node. With them the counter
    # does not count a report twice whose answer was lost.
    self._counted: collections.Counter[str] = collections.Counter()
    self._life = pulse.life()
    self._token = os.urandom(8).hex()  # its rows are not another's
    self._row = 0  # number of the newest row of this life
    # Rows that the counter has not received yet: when each was made, its kind.
    self._rows: collections.deque[tuple[float, str, dict[str, Any]]] = (
      collections.deque(maxlen=_MOST_ROWS)
    )
    self._dropping = False
    self._next = clock()
    self._backoff_s = 0.0

  def count(self, **increments: int) -> None:
    """Adds to the counts of the next report, for example actor_steps=32."""
    for name, more in increments.items():
      self._pending[name] += more
    if any(increments.values()):
      pulse.worked(moved=any(increments.get(name) for name in _MOVES))

  def count_dropped(self, episodes: int) -> None:
    """Adds broken episodes; a run without any has no such count."""
    if episodes:
      self.count(dropped_episodes=episodes)

  def due(self) -> bool:
    return self._clock() >= self._next

  def report(self, metrics: Mapping[str, Any] | None = None) -> bool:
    """Sends the counts and metrics. Returns whether the run is finished."""
    sent = dict(self._pending)
    try:
      answer = self._counter.report(
        self.node, sent, dict(metrics or {}), (self._life, dict(self._counted))
      )
    except (rpc.Unavailable, rpc.RemoteError) as e:
      self._fail(e)
      return self.finished
    self._counted.update(sent)
    self._pending.subtract(sent)
    self._pending += collections.Counter()  # drops zeros
    self._backoff_s = 0.0
    self._next = self._clock() + _PERIOD_S
    self.finished = bool(answer['finished'])
    self._send_rows()
    if self._goal is not None and not self.finished:
      self.finish(*self._goal)
    return self.finished

  def log(self, kind: str, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics/<kind>.jsonl.

    If the counter does not answer, it waits for a next report or row. By its
    number the counter leaves out one that it has, if only an answer was lost.
    """
    if len(self._rows) == _MOST_ROWS and not self._dropping:
      self._dropping = True
      _logger.warning('More than %d rows wait: the oldest go.', _MOST_ROWS)
    self._row += 1
    self._rows.append(
      (self._clock(), kind, {**row, 'number_': (self._token, self._row)})
    )
    # Each attempt may take a second: while rows wait, they are made as reports.
    if len(self._rows) == 1 or self.due():
      self._send_rows()

  def remark(self, remarks: Iterable[str]) -> None:
    """Logs warnings; of texts that differ only in numbers, only the first."""
    for text in remarks:
      kind = re.sub(r'[-\d.%]+', '', text)
      if kind not in self._remarked:
        self._remarked.add(kind)
        _logger.warning(text)

  def finish(self, reason: str, result: Mapping[str, Any]) -> None:
    """Reports that the goal is reached; if that fails, `report` repeats it."""
    self._goal = reason, result
    try:
      self._counter.finish(reason, dict(result))
      self.finished = True
      self._goal = None
    except (rpc.Unavailable, rpc.RemoteError) as e:
      self._fail(e)

  def hold(self, seconds: float) -> None:
    """Asks the counter to keep the program up after the run; 0 releases it."""
    if not seconds:
      self._send_rows()
      if self._rows:
        _logger.warning('%d rows may be lost.', len(self._rows))
    counter = self._counter
    if not seconds:  # else a counter that is started anew would go on holding
      counter = counter.with_deadline(_START_DEADLINE_S)
    try:
      counter.hold(self.node, float(seconds))
    except (rpc.Unavailable, rpc.RemoteError) as e:
      _logger.warning('The counter does not wait for %s: %s', self.node, e)

  def steps_done(self, should_stop: Callable[[], bool] = lambda: False) -> int:
    """Actor steps that this node had reported before it was restarted.

    If the counter does not answer within half a minute, logs a warning and
    returns 0.
    """
    counter = self._counter.with_deadline(_START_DEADLINE_S)
    try:
      totals = rpc.retry(
        lambda: counter.begin(self.node, self._life),
        _START_PATIENCE_S,
        should_stop=should_stop,
      )
    except (rpc.Unavailable, rpc.RemoteError) as e:
      _logger.warning(
        '%s begins at step 0, and does again what it may have done before: the '
        'counter does not say how far it was. %s',
        self.node,
        e,
      )
      return 0
    return int(totals.get('actor_steps', 0))

  def _send_rows(self) -> None:
    while self._rows:
      made, kind, row = self._rows[0]
      age_s = self._clock() - made + row.get('age_s', 0.0)
      try:
        self._counter.log(self.node, kind, {**row, 'age_s': age_s})
      except rpc.Unavailable as e:
        self._fail(e)
        return
      except rpc.RemoteError as e:
        _logger.warning('A row of %s was lost: %s', kind, e)
      self._rows.popleft()
    self._dropping = False

  def _fail(self, error: Exception) -> None:
    if not self._backoff_s:
      _logger.warning('The counter does not answer, going on: %s', error)
    self._backoff_s = min(max(2 * self._backoff_s, 0.1), _BACKOFF_CAP_S)
    self._next = self._clock() + self._backoff_s
