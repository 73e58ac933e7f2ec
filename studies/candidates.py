"""What a swarm's supervisors kept out, and whether theta_star fell.

Read from a run's rows. A trial chooses, so its mean is too good; confirmations
are played after the choice, and are what versions are compared by.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os

from run_records import curves
from run_records import learning_statistics as statistics
from run_records import run_directory

_MOST = 20  # confirmations of a version that are compared
_LEAST = 5  # with less a version is not judged


@dataclasses.dataclass(frozen=True)
class Filter:
  """What supervisors decided in one or more runs.

  Attributes:
    accepted: candidates that became theta_star.
    rejected: candidates that did not.
    judged: publications that both have the confirmations to be compared.
    fallen: those of them after which confirmations are worse, by more than
      the 95% bootstrap interval of the difference.
  """

  accepted: int = 0
  rejected: int = 0
  judged: int = 0
  fallen: int = 0

  def __add__(self, other: Filter) -> Filter:
    return Filter(
      *(
        a + b
        for a, b in zip(
          dataclasses.astuple(self), dataclasses.astuple(other), strict=True
        )
      )
    )


def of_run(run_dir: str | os.PathLike[str]) -> Filter | None:
  """What the supervisors of a run decided.

  Returns:
    None for a run without a supervisor, and for one that kept no rows of its
    episodes.
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
  # The last of the old version and the first of the new one: side by side.
  difference = statistics.bootstrap_difference(after[:_MOST], before[-_MOST:])
  return difference.high < 0
