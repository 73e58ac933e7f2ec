"""Counts and their rates, of the run and of one node."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import math
from typing import Any

_WINDOW_S = 5.0
_PATIENCE = 2  # increments' durations without the next one: it has stopped
_MIN_DURATION_S = 0.5  # over less time, a rate is mostly jitter of the reports


class Rates:
  """Rates of several counts. Not thread-safe; callers pass the time `now`."""

  def __init__(self):
    # Name -> (time, total at that time), oldest first.
    self._points: dict[str, collections.deque[tuple[float, int]]] = {}

  def add(self, name: str, count: int, now: float) -> None:
    """Adds an increment that was reported at `now`, in seconds."""
    points = self._points.setdefault(name, collections.deque())
    if not count:  # of a node that reports more often than it has news
      return
    # The duration of the first increment is unknown, so it only opens the
    # window: a slow start must not show as a low rate.
    points.append((now, points[-1][1] + count if points else 0))
    self._cut(points, now)

  def per_second(self, now: float) -> dict[str, float]:
    """The rate of each count over the last 5 s; 0 while it is unknown.

    Of one that grows less often, as by generations, over its newest increment.
    """
    rates = {}
    for name, points in self._points.items():
      rates[name] = 0.0
      self._cut(points, now)
      if len(points) > 1:
        (oldest, before), (newest, total) = points[0], points[-1]
        # The window ends at `now`, so rates fall to 0 when reports stop.
        window = max(_WINDOW_S, newest - oldest, now - newest)
        duration = min(now - oldest, window)
        if duration >= _MIN_DURATION_S:
          rates[name] = (total - before) / duration
    return rates

  def _cut(
    self, points: collections.deque[tuple[float, int]], now: float
  ) -> None:
    while len(points) > 1 and points[1][0] <= now - _WINDOW_S:
      took = points[1][0] - points[0][0]
      # The next one may take longer than this one did.
      if len(points) == 2 and now - points[1][0] < _PATIENCE * took:
        return
      points.popleft()


class NodeRecord:
  """The counter's record of one node."""

  def __init__(self, now: float, totals: dict[str, int] | None = None):
    self.metrics: dict[str, Any] = {}  # its newest ones
    self.totals: dict[str, int] = totals or {}  # counts of all its lives
    self.rates = Rates()  # of its counts
    self.seen = now  # time of its last report
    self.logged = -math.inf  # time at which its metrics were last written
    self.unlogged = False  # whether `metrics` are newer than that
    self.told = False  # whether it was told that the run is finished
    self.life: tuple[str, int] = ('', 0)  # its newest life, see `pulse.life`

  def snapshot(self, now: float) -> dict[str, Any]:
    """Values for a live view; `age_s` is the time since the last report."""
    return {
      'metrics': dict(self.metrics),
      'totals': dict(self.totals),
      'rates': self.rates.per_second(now),
      'age_s': now - self.seen,
    }

  def lives(self, life: Sequence[Any]) -> bool:
    """Makes `life` the newest. Returns False if a newer one has begun."""
    run, number = life
    if run == self.life[0] and number < self.life[1]:
      return False
    if (run, number) != self.life:
      self.life = (run, number)
      # Metrics of the life before would be logged as if they were still true.
      self.metrics, self.unlogged = {}, False
    return True
