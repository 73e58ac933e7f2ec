"""Counts over time: rates by name, and the record of one node."""

from __future__ import annotations

import collections
from collections.abc import Mapping
import math
from typing import Any

_WINDOW_S = 5.0
_MIN_DURATION_S = 0.5  # Below this a rate is mostly the jitter of reports.


class Rates:
  """Rates of several counts. The caller gives the time, and the locking."""

  def __init__(self):
    # Name to (time, total after it), oldest first.
    self._points: dict[str, collections.deque[tuple[float, int]]] = {}

  def add(self, name: str, count: int, now: float) -> None:
    """Adds an increment that was reported at `now`, in seconds."""
    if name not in self._points:
      # How long the first increment took is unknown, so it only opens the
      # window: a slow start does not show as a low rate.
      self._points[name] = collections.deque([(now, 0)])
      return
    points = self._points[name]
    points.append((now, points[-1][1] + count))
    self._cut(points, now)

  def per_second(self, now: float) -> dict[str, float]:
    """Count name to its rate; 0 until there is enough to tell."""
    rates = {}
    for name, points in self._points.items():
      self._cut(points, now)
      # Falls to zero when reports stop: the window moves on with the time.
      duration = min(now - points[0][0], _WINDOW_S)
      known = len(points) > 1 and duration >= _MIN_DURATION_S
      done = points[-1][1] - points[0][1]
      rates[name] = done / duration if known else 0.0
    return rates

  def _cut(
    self, points: collections.deque[tuple[float, int]], now: float
  ) -> None:
    while len(points) > 1 and points[1][0] <= now - _WINDOW_S:
      points.popleft()


class NodeRecord:
  """What the counter knows of one node.

  Attributes:
    metrics: its newest numbers, by name.
    totals: count name to its total, restarts included.
    rates: of its counts.
    seen: time of its last report.
    logged: time at which its metrics were last written.
    unlogged: whether it has given newer ones since.
    told: whether it has read that the run is finished.
    life: the newest of the node, see `pulse.life`.
    of_life: count name to its total in that.
  """

  def __init__(self, now: float, totals: dict[str, int] | None = None):
    self.metrics: dict[str, Any] = {}
    self.totals: dict[str, int] = totals or {}
    self.rates = Rates()
    self.seen = now
    self.logged = -math.inf
    self.unlogged = False
    self.told = False
    self.life: tuple[str, int] = ('', 0)
    self.of_life: dict[str, int] = {}

  def snapshot(self, now: float) -> dict[str, Any]:
    """What a live view shows; `age_s` is the time since its last report."""
    return {
      'metrics': dict(self.metrics),
      'totals': dict(self.totals),
      'rates': self.rates.per_second(now),
      'age_s': now - self.seen,
    }

  def begin(self, life: tuple[str, int]) -> bool:
    """From now on this life counts, and none before it. False: it is one."""
    (run, number), (known, newest) = life, self.life
    if run == known and number < newest:
      return False
    if (run, number) != (known, newest):
      self.life, self.of_life = (run, number), {}
    return True

  def news(
    self,
    life: tuple[str, int],
    counted: Mapping[str, int],
    counts: Mapping[str, int],
  ) -> dict[str, int]:
    """What of a report is not counted yet.

    Args:
      life: of the node.
      counted: what it knows to be counted, in this life.
      counts: its increments since then.
    """
    if not self.begin(life):
      return {}
    news = {}
    for name in {**counted, **counts}:
      known = self.of_life.get(name, 0)
      # Not less than that, where a report was overtaken by the next.
      total = int(counted.get(name, 0)) + int(counts.get(name, 0))
      self.of_life[name] = max(known, total)
      news[name] = self.of_life[name] - known
    return news
