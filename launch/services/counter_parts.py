"""Parts of the counter: rates, its record of a node, and the end of a run."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import math
from typing import Any

_WINDOW_S = 5.0
_PATIENCE = 2  # increments' durations without the next one: it has stopped
_MIN_DURATION_S = 0.5  # over less time, a rate is mostly jitter of the reports
# What users call that which is counted.
_COUNTED = {'actor_steps': 'environment steps', 'learner_steps': 'updates'}


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
    rates = dict.fromkeys(self._points, 0.0)
    for name, points in self._points.items():
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


class RunEnd:
  """The limits of a run, and what ended it. Not thread-safe.

  `budget` maps a count's name to the total at which the run ends.
  """

  def __init__(
    self, budget: Mapping[str, int] | None, wall_clock_s: float | None
  ):
    """Raises ValueError if a limit is not positive."""
    self.budget = dict(budget or {})
    self.wall_clock_s = wall_clock_s
    for name, limit in {**self.budget, 'wall_clock_s': wall_clock_s}.items():
      if limit is not None and not limit > 0:
        raise ValueError(f'the budget {name}={limit} has to be above 0.')
    # 'goal', 'budget' or 'wall_clock'; None while the run goes on.
    self.outcome: str | None = None
    self.reason = ''  # one sentence for the user
    self.result: dict[str, Any] = {}  # values that `goal` was given

  @property
  def over(self) -> bool:
    return self.outcome is not None

  def goal(self, reason: str, result: Mapping[str, Any]) -> None:
    self.outcome, self.reason, self.result = 'goal', reason, dict(result)

  def check(self, totals: Mapping[str, int], elapsed_s: float) -> None:
    """Ends the run if it has reached a limit."""
    if self.over:
      return
    for name, limit in self.budget.items():
      done = totals.get(name, 0)
      if name == 'learner_steps':  # a learner without a sound update ends, too
        done += totals.get('skipped_updates', 0)
      if done >= limit:
        what = _COUNTED.get(name, name)
        more = f': {done:,}' if done > limit else ''
        self.outcome = 'budget'
        self.reason = f'the budget of {limit:,} {what} is used{more}'
        return
    if self.wall_clock_s is not None and elapsed_s >= self.wall_clock_s:
      self.outcome = 'wall_clock'
      self.reason = f'the {self.wall_clock_s:g} s of wall clock are over'

  def left_s(
    self,
    totals: Mapping[str, int],
    per_second: Mapping[str, float],
    elapsed_s: float,
  ) -> float | None:
    """Seconds until the next limit at the present rates; None if unknown."""
    if self.over:
      return 0.0
    left = []
    if self.wall_clock_s is not None:
      left.append(self.wall_clock_s - elapsed_s)
    for name, limit in self.budget.items():
      rate = per_second.get(name, 0.0)
      if rate > 0:
        left.append((limit - totals[name]) / rate)
    return max(0.0, min(left)) if left else None

  def state(self) -> dict[str, Any]:
    """The outcome, for `restore` of a restarted counter."""
    return {
      'outcome': self.outcome,
      'reason': self.reason,
      'result': dict(self.result),
    }

  def restore(self, state: Mapping[str, Any]) -> None:
    self.outcome, self.reason = state['outcome'], state['reason']
    self.result = dict(state['result'])
