"""When a run is over: its goal, its budget, or its wall clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RunEnd:
  """The limits of a run, and what ended it. The counter locks.

  Attributes:
    budget: count name to the total at which the run is over.
    wall_clock_s: seconds after which it is over; None for no limit.
    outcome: 'goal', 'budget' or 'wall_clock'; None while the run goes on.
    reason: one sentence for the user.
    result: what was found.
  """

  def __init__(
    self, budget: Mapping[str, int] | None, wall_clock_s: float | None
  ):
    """Nothing has ended yet.

    Raises:
      ValueError: a limit that is not positive.
    """
    for name, limit in {**(budget or {}), 'wall_clock_s': wall_clock_s}.items():
      if limit is not None and not limit > 0:
        raise ValueError(
          f'the budget {name}={limit} ends the run before it starts. Give a '
          'positive number, or leave it out for no limit.'
        )
    self.budget = dict(budget or {})
    self.wall_clock_s = wall_clock_s
    self.outcome: str | None = None
    self.reason = ''
    self.result: dict[str, Any] = {}

  @property
  def over(self) -> bool:
    return self.outcome is not None

  def goal(self, reason: str, result: Mapping[str, Any]) -> None:
    """The run has found what it was to find."""
    self._end('goal', reason, dict(result))

  def check(self, totals: Mapping[str, int], elapsed_s: float) -> None:
    """Ends a run that is at a limit; the first to be reached ends it."""
    if self.over:
      return
    for name, limit in self.budget.items():
      done = totals.get(name, 0)
      if done >= limit:
        self._end(
          'budget', f'the budget of {limit:,} {name} is used: {done:,}', {}
        )
        return
    if self.wall_clock_s is not None and elapsed_s >= self.wall_clock_s:
      self._end(
        'wall_clock', f'the {self.wall_clock_s:g} s of wall clock are over', {}
      )

  def left_s(
    self,
    totals: Mapping[str, int],
    per_second: Mapping[str, float],
    elapsed_s: float,
  ) -> float | None:
    """Seconds until a limit at the present rates; None while unknown."""
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
    """What ended the run, as a next counter takes it up with `restore`."""
    return {
      'outcome': self.outcome,
      'reason': self.reason,
      'result': dict(self.result),
    }

  def restore(self, state: Mapping[str, Any]) -> None:
    self._end(state['outcome'], state['reason'], state['result'])

  def _end(
    self, outcome: str | None, reason: str, result: dict[str, Any]
  ) -> None:
    self.outcome, self.reason, self.result = outcome, reason, result
