"""Learning curves of run directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
from typing import Any, NamedTuple

import numpy as np

from murmuration.run_records import learning_statistics as statistics
from murmuration.run_records import run_directory

_RETURN = 'return_mean'
_STEPS = 'actor_steps'
_MEMBERS = 'member_returns'
_WHOLE = 0.9  # least part of the budget at the last evaluation of a whole run
_CHOOSE = 0.4  # share of an evaluation's episodes that chooses a member


class Curve(NamedTuple):
  """N evaluations of one agent, in arrays [N].

  Attributes:
    steps: its environment steps, strictly increasing.
    seconds: since the start of the run, not decreasing.
    returns: mean greedy returns.
  """

  steps: np.ndarray
  seconds: np.ndarray
  returns: np.ndarray


def of_run(run_dir: str | os.PathLike[str]) -> Curve:
  """The curve of a run, finished or not, over the steps of one member.

  A swarm is compared with one agent in this way. If a step was evaluated twice,
  the last value counts. Evaluations that were given up are left out, see
  `given_up`.
  """
  rows = in_order(run_directory.open(run_dir).metrics('evaluation'), _RETURN)
  return _curve(rows, [row[_RETURN] for row in rows])


def of_members(run_dir: str | os.PathLike[str]) -> list[Curve]:
  """The curves of all members of a run that evaluates each member.

  One whose evaluation was given up lacks that point; the others do not.

  Raises:
    ValueError: the run evaluates one policy for all.
  """
  rows = in_order(run_directory.open(run_dir).metrics('evaluation'), _STEPS)
  if not all(_MEMBERS in row for row in rows):
    raise ValueError(
      f'{run_dir} evaluates one policy, not its members; read it with of_run.'
    )
  count = len(rows[0][_MEMBERS]) if rows else 0
  return [
    _curve(rows, [row[_MEMBERS][i] for row in rows]) for i in range(count)
  ]


def of_best_member(run_dir: str | os.PathLike[str]) -> Curve:
  """The curve of the best of a run's independent members.

  Each evaluation chooses the member with the highest mean return on the first
  two fifths of the episodes (4 of 10), and scores it on the others: its mean on
  the episodes that chose it would be biased upwards. A member whose evaluation
  was given up is not the best.

  Raises:
    ValueError: the run evaluates one policy for all, or too few episodes.
  """
  rows = in_order(run_directory.open(run_dir).metrics('evaluation'), _STEPS)
  scores = []
  for row in rows:
    means = row.get(_MEMBERS, ())
    # Those that were given up have no returns.
    members = len(finite(means))
    if means and not members:
      scores.append(np.nan)
      continue
    # The returns are [members * episodes], ordered by member.
    if not members or len(row['returns']) % members:
      raise ValueError(
        f'{run_dir} has no returns of the same number of episodes for each '
        'member in each evaluation. Start it with --topology=single_process '
        'and --config.single.num_agents.'
      )
    returns = np.reshape(row['returns'], (members, -1))
    choosing = round(_CHOOSE * returns.shape[1])
    if not choosing:
      raise ValueError(
        f'{run_dir} evaluates with {returns.shape[1]} episodes: too few to '
        'choose a member on some and to score it on others. Give at least '
        '--config.run.eval_episodes=2.'
      )
    best = returns[:, :choosing].mean(axis=1).argmax()
    scores.append(float(returns[best, choosing:].mean()))
  return _curve(rows, scores)


def given_up(run_dir: str | os.PathLike[str]) -> int:
  """Evaluations of one policy without a return: its episodes kept breaking."""
  rows = run_directory.open(run_dir).metrics('evaluation')
  means = [x for row in rows for x in row.get(_MEMBERS, [row.get(_RETURN)])]
  return len(means) - len(finite(means))


def in_order(
  rows: Sequence[dict[str, Any]], needed: str
) -> list[dict[str, Any]]:
  """Rows with finite `needed` and `actor_steps`, sorted by `actor_steps`.

  A run that was killed and resumed may have made some steps twice.
  """
  kept = [
    row for row in rows if len(finite([row.get(needed), row.get(_STEPS)])) == 2
  ]
  return sorted(kept, key=lambda row: row[_STEPS])


def finite(values: Sequence[Any]) -> list[float]:
  """The finite numbers among the values."""
  return [
    float(value)
    for value in values
    if isinstance(value, (int, float)) and np.isfinite(value)
  ]


def steps_per_member(row: Mapping[str, Any]) -> float:
  """Environment steps of one member; the row's total if it has only that."""
  steps = row.get('actor_steps_per_member')
  return float(row['actor_steps'] if steps is None else steps)


def num_members(rows: Sequence[Mapping[str, Any]]) -> int:
  """The number of members that share the total steps of these evaluations."""
  for row in reversed(rows):
    if steps_per_member(row) > 0:
      return max(1, round(row['actor_steps'] / steps_per_member(row)))
  return 1


def whole(curve: Curve, budget: float) -> bool:
  """Whether the last evaluation came near the end of the budget."""
  return bool(len(curve.steps) and curve.steps[-1] >= _WHOLE * budget)


def threshold(environment: str | None) -> float | None:
  """The return that solves an environment, if known."""
  found = statistics.REFERENCES.get(environment or '')
  return found and found.threshold


def _curve(rows: Sequence[dict[str, Any]], returns: Sequence[float]) -> Curve:
  points = {
    steps_per_member(row): (row.get('elapsed_s', np.nan), value)
    for row, value in zip(rows, returns, strict=True)
    if finite([value])
  }
  steps = np.array(sorted(points), float)
  seconds, values = np.array([points[s] for s in steps], float).reshape(-1, 2).T
  # A restarted node may count from 0 again.
  return Curve(steps, np.maximum.accumulate(seconds), values)
