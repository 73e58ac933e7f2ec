"""A node's reports to the counter, once per second.

A node counts for itself and reports how much it has done in all: a report may
be lost, repeated or late without harm. It does not wait for a counter that is
away: counts and rows are kept, and sent later.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
import logging
import re
import time
from typing import Any

from murmuration.launch import pulse
from murmuration.launch import rpc

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
_MOST_ROWS = 1000  # that wait for the counter; then the oldest go
_ERRORS = (rpc.Unavailable, rpc.RemoteError)


class Reporter:
  """Counts what one node does, and sends that and its metrics to the counter.

  Attributes:
    node: label and index, such as 'explorer/0'.
    finished: whether the node has heard that the run is over.
    before: counts of the node's earlier lives; None until they are known.
  """

  def __init__(
    self, node: str, counter: Any, clock: Callable[[], float] = time.monotonic
  ):
    """`counter` is a client of services.counter.Counter."""
    self.node = node
    self.finished = False
    self._counter = counter.with_deadline(_DEADLINE_S)
    self._clock = clock
    self._life = pulse.life()
    self._counts: collections.Counter[str] = collections.Counter()  # its own
    self.before: Mapping[str, int] | None = None
    # Rows that the counter has not received yet: when each was made, its kind.
    self._rows: collections.deque[tuple[float, str, dict[str, Any]]] = (
      collections.deque(maxlen=_MOST_ROWS)
    )
    self._newest_row = 0.0  # its time of day
    # Arguments of a `finish` that the counter has not received yet.
    self._goal: tuple[str, Mapping[str, Any]] | None = None
    self._remarked: set[str] = set()
    self._next = clock()
    self._backoff_s = 0.0

  def count(self, **more: int) -> None:
    """Adds to the node's counts, for example actor_steps=32."""
    self._counts.update(more)
    if any(more.values()):
      pulse.worked(moved=any(more.get(name) for name in _MOVES))

  def count_dropped(self, episodes: int) -> None:
    """Adds broken episodes; a run without any has no such count."""
    if episodes:
      self.count(dropped_episodes=episodes)

  def due(self) -> bool:
    return self._clock() >= self._next

  def report(self, metrics: Mapping[str, Any] | None = None) -> bool:
    """Sends the counts and metrics. Returns whether the run is finished."""
    try:
      if self._counts and self.before is None:
        self.before = self._counter.begin(self.node, self._life)
      before = self.before or {}
      counts = {
        name: before.get(name, 0) + count
        for name, count in self._counts.items()
      }
      answer = self._counter.report(
        self.node, counts, dict(metrics or {}), self._life
      )
    except _ERRORS as e:
      self._fail(e)
      return self.finished
    self._backoff_s = 0.0
    self._next = self._clock() + _PERIOD_S
    self.finished = bool(answer['finished'])
    self._send_rows()
    if self._goal is not None and not self.finished:
      self.finish(*self._goal)
    return self.finished

  def log(self, kind: str, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics/<kind>.jsonl, with its time of day.

    If the counter does not answer, it waits for a next report or row.
    """
    # Never the same twice: by it the counter knows a row that comes again.
    self._newest_row = max(time.time(), self._newest_row + 1e-6)
    row = {'unix_time_s': self._newest_row, **row}
    self._rows.append((self._clock(), kind, row))
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
    except _ERRORS as e:
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
    except _ERRORS as e:
      self._fail(e)

  def steps_done(self, should_stop: Callable[[], bool] = lambda: False) -> int:
    """Actor steps that this node had reported before it was restarted.

    If the counter does not answer within half a minute, logs a warning and
    returns 0.
    """
    counter = self._counter.with_deadline(_START_DEADLINE_S)
    try:
      self.before = rpc.retry(
        lambda: counter.begin(self.node, self._life),
        _START_PATIENCE_S,
        should_stop=should_stop,
      )
    except _ERRORS as e:
      _logger.warning(
        '%s begins at step 0, as the counter does not say how far it was: %s',
        self.node,
        e,
      )
      return 0
    return int(self.before.get('actor_steps', 0))

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

  def _fail(self, error: Exception) -> None:
    if not self._backoff_s:
      _logger.warning('The counter does not answer, going on: %s', error)
    self._backoff_s = min(max(2 * self._backoff_s, 0.1), _BACKOFF_CAP_S)
    self._next = self._clock() + self._backoff_s
