"""Decisions of a swarm's supervisors, and whether theta_star got worse.

They are read from a run's rows. A trial selects a candidate, so its mean is too
high. Versions are compared by confirmations, played after the selection.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from typing import NamedTuple

from run_records import curves
from run_records import learning_statistics as statistics
from run_records import run_directory

_MOST = 20  # confirmations per version that are compared
_LEAST = 5  # with fewer, a version is not judged


class Filter(NamedTuple):
  """What supervisors decided in one or more runs.

  Attributes:
    accepted: candidates that became theta_star.
    rejected: candidates that did not.
    judged: publications with enough confirmations before and after.
    fallen: judged publications after which confirmations were worse, by more
      than the 95% bootstrap interval of the difference.
  """

  accepted: int
  rejected: int
  judged: int
  fallen: int


def of_run(run_dir: str | os.PathLike[str]) -> Filter | None:
  """What a run's supervisors decided; None without a supervisor or its rows.

  Of a run of more than three hours the counter keeps a part of the episodes,
  so that fewer versions can be judged.
  """
  run = run_directory.open(run_dir)
  episodes = curves.in_order(run.metrics('supervisor'), 'episode_return')
  servers = [r for r in run.metrics('node_star') if 'accepted' in r]
  if not episodes or not servers:
    return None
  confirmed: dict[int, list[float]] = {}
  for row in episodes:
    if row['kind'] == 'confirmation':
      confirmed.setdefault(row['version'], []).append(row['episode_return'])
  fallen = [
    _fell(confirmed[version - 1], confirmed[version])
    for version in sorted(confirmed)
    if version - 1 in confirmed
    and min(len(confirmed[version - 1]), len(confirmed[version])) >= _LEAST
  ]
  return Filter(
    accepted=int(servers[-1]['accepted']),
    rejected=int(servers[-1]['rejected']),
    judged=len(fallen),
    fallen=sum(fallen),
  )


def _fell(before: Sequence[float], after: Sequence[float]) -> bool:
  # The latest of the old version and the first of the new: closest in time.
  difference = statistics.bootstrap_difference(after[:_MOST], before[-_MOST:])
  return difference.high < 0
