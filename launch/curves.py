"""Learning curves, read out of run directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
from typing import Any

import numpy as np

from launch import learning_statistics as statistics
from launch import run_directory


def evaluation_curve(
  run_dir: str | os.PathLike[str], total_steps: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  """Environment steps and mean greedy returns of a run, both [N].

  Args:
    run_dir: of the run, finished or not.
    total_steps: the steps of all members together; else per member, which is
      how a swarm is compared with one agent.

  Returns:
    steps, increasing, and returns; empty if the run was never evaluated.
  """
  run = run_directory.open(run_dir)
  rows = in_order(run.metrics('evaluation'), 'return_mean')
  steps = [
    row['actor_steps'] if total_steps else steps_per_member(row) for row in rows
  ]
  returns = [row['return_mean'] for row in rows]
  return np.asarray(steps, float), np.asarray(returns, float)


def in_order(
  rows: Sequence[dict[str, Any]], needed: str
) -> list[dict[str, Any]]:
  """Rows with finite `needed` and `actor_steps`, sorted by steps.

  A run that was killed and resumed may have done some steps twice.
  """
  kept = [
    row
    for row in rows
    if len(finite([row.get(needed), row.get('actor_steps')])) == 2
  ]
  return sorted(kept, key=lambda row: row['actor_steps'])


def finite(values: Sequence[Any]) -> list[float]:
  """The finite numbers among the values."""
  return [
    float(value)
    for value in values
    if isinstance(value, (int, float)) and np.isfinite(value)
  ]


def steps_per_member(row: Mapping[str, Any]) -> float:
  """Environment steps of one member; all of them if there is only one."""
  steps = row.get('actor_steps_per_member')
  return float(row['actor_steps'] if steps is None else steps)


def num_members(rows: Sequence[Mapping[str, Any]]) -> int:
  """How many members share the total steps of these evaluations."""
  for row in reversed(rows):
    if steps_per_member(row) > 0:
      return max(1, round(row['actor_steps'] / steps_per_member(row)))
  return 1


def threshold(config: Any) -> float | None:
  """The return that solves the environment a config names, if known."""
  if isinstance(config, str) and config in statistics.REFERENCES:
    return statistics.REFERENCES[config].threshold
  values: Sequence[Any] = ()
  if isinstance(config, dict):
    values = list(config.values())
  elif isinstance(config, list):
    values = config
  found = (threshold(value) for value in values)
  return next((value for value in found if value is not None), None)
