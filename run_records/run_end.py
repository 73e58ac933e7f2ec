"""The end of a run: its goal, its budget or its wall-clock limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What users call that which is counted.
_COUNTED = {'actor_steps': 'environment steps', 'learner_steps': 'updates'}


class RunEnd:
  """The limits of a run, and what ended it. Not thread-safe.

  `budget` maps a count's name to the total at which the run ends.
  """

  def __init__(
    self, budget: Mapping[str, int] | None, wall_clock_s: float | None
  ):
    """Raises ValueError if a limit is not positive."""
    for name, limit in {**(budget or {}), 'wall_clock_s': wall_clock_s}.items():
      if limit is not None and not limit > 0:
        raise ValueError(
          f'the budget {name}={limit} ends the run before it starts. Give a '
          'positive number, or leave it out for no limit.'
        )
    self.budget = dict(budget or {})
    self.wall_clock_s = wall_clock_s
    # 'goal', 'budget' or 'wall_clock'; None while the run goes on.
    self.outcome: str | None = None
    self.reason = ''  # one sentence for the user
    self.result: dict[str, Any] = {}  # values that `goal` was given

  @property
  def over(self) -> bool:
    return self.outcome is not None

  def goal(self, reason: str, result: Mapping[str, Any]) -> None:
    self._end('goal', reason, dict(result))

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
        self._end('budget', f'the budget of {limit:,} {what} is used{more}', {})
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
    self._end(state['outcome'], state['reason'], state['result'])

  def _end(
    self, outcome: str | None, reason: str, result: dict[str, Any]
  ) -> None:
    self.outcome, self.reason, self.result = outcome, reason, result
