"""Results of a study: the numbers of every seed, differences, verdicts.

The rules are those of learning_statistics.py. A run whose evaluations end
before 0.9 of its budget counts as crashed: for the rest of the budget it is
scored as a random policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import shlex
from typing import Any

import numpy as np

from murmuration.run_records import curves
from murmuration.run_records import learning_statistics as statistics
from murmuration.run_records import run_directory
from murmuration.studies import plan as study_plan
from murmuration.studies import runs as study_runs

_DENSE = 0.8  # least part of run.evaluations in the curve of a whole run
_LEAST_SEEDS = 2  # of each system, for a verdict
_NOTHING = curves.Curve(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclasses.dataclass(frozen=True)
class System:
  """The runs of one variant.

  Attributes:
    curves: one for each seed.
    seconds: of each complete process, until its last evaluation.
    steps_per_s: environment steps of all agents of each complete process,
      divided by these seconds.
    records: how each process ended.
    supervisor_steps: environment steps of supervisors in each complete process,
      which curves do not count.
    given_up: for each process, evaluations without a return: curves lack them.
    sparse: for each curve, whether it is whole but has fewer points than 0.8 of
      run.evaluations.
  """

  curves: list[curves.Curve]
  seconds: list[float]
  steps_per_s: list[float]
  records: list[dict[str, Any]]
  supervisor_steps: list[int] = dataclasses.field(default_factory=list)
  given_up: list[int] = dataclasses.field(default_factory=list)
  sparse: list[bool] = dataclasses.field(default_factory=list)


def read(
  study: study_plan.Study, jobs: Sequence[study_plan.Job]
) -> dict[str, System]:
  """What the runs left, by label."""
  found = {label: System([], [], [], []) for label in study.variants}
  for job in jobs:
    system = found[job.variant]
    system.records.append(study_runs.record(job))
    variant = study.variants[job.variant]
    if variant.together:
      own = curves.of_members(job.path) or [_NOTHING] * len(job.seeds)
    elif variant.best_of:
      own = [curves.of_best_member(job.path)]
    else:
      own = [curves.of_run(job.path)]
    own = [c._replace(steps=c.steps * job.scale) for c in own]
    assert len(own) == len(job.seeds), (job.path, len(own), job.seeds)
    system.curves.extend(own)
    system.given_up.append(curves.given_up(job.path))
    # A script that is not of this project may have other settings.
    run = run_directory.open(job.path).config().get('run', {})
    least = _DENSE * run.get('evaluations', 0)
    system.sparse.extend(
      curves.whole(c, job.budget) and len(c.steps) < least for c in own
    )
    summary = run_directory.open(job.path).summary()
    if summary is not None and curves.whole(own[0], job.budget):
      seconds = float(own[0].seconds[-1])
      system.seconds.append(seconds)
      totals = summary['totals']
      system.steps_per_s.append(totals.get('actor_steps', 0) / seconds)
      system.supervisor_steps.append(int(totals.get('supervisor_steps', 0)))
  return found


def collect(
  study: study_plan.Study, systems: Mapping[str, System], command: str
) -> dict[str, Any]:
  """All numbers of a study, ready for JSON.

  `systems` comes from `read`; `command` is the command that made them.
  """
  records = [r for system in systems.values() for r in system.records]
  results: dict[str, Any] = {
    'study': study.name,
    'environment': study.environment,
    'budget_per_agent': study.budget,
    'threshold': study.threshold,
    'random': study.reference.random,
    'baseline': study.baseline,
    'seeds': study.seeds,
    'command': command,
    'code': sorted({r['code'] for r in records}),
    'machine': sorted({r['machine'] for r in records}),
    'at_a_time': max(r['at_a_time'] for r in records),
    'variants': {},
  }

  def against(label: str, other: str) -> dict[str, Any]:
    # Systems are compared over the steps that both have.
    upto = min(study.budget_of(label), study.budget_of(other))
    first, second = (
      _scores(study, systems, name, upto) for name in (label, other)
    )
    return {'difference_steps': upto, **_against(study, first, second)}

  for label, system in systems.items():
    budget, variant = study.budget_of(label), study.variants[label]
    entry = _entry(study, _scores(study, systems, label, budget))
    entry['budget'] = budget
    entry['crashed'] = sum(not curves.whole(c, budget) for c in system.curves)
    notes = {
      'best_of': variant.best_of,
      'shared_by': variant.shared_by if variant.shared_by > 1 else 0,
      'counted': variant.counted if variant.counted < 1 else 0,
      'given_up': sum(system.given_up),
      'sparse': sum(system.sparse),
    }
    entry |= {name: value for name, value in notes.items() if value}
    entry['processes'] = len(system.records)
    entry['seconds'] = system.seconds
    entry['steps_per_s'] = system.steps_per_s
    words = [variant.script, *study_plan.arguments(study, label)]
    entry['command'] = shlex.join(words)
    if any(system.supervisor_steps):
      entry['supervisor_steps'] = system.supervisor_steps
    if label != study.baseline:
      entry |= against(label, study.baseline)
    results['variants'][label] = entry
  results['contrasts'] = [
    {**dataclasses.asdict(c), **against(c.variant, c.against)}
    for c in study.contrasts
  ]
  results['goals'] = [
    _judged(goal, results['variants'][goal.variant]['last_three'])
    for goal in study.goals
  ]
  seconds = equal_seconds(study, systems)
  if seconds is not None:
    results['by_seconds'] = _by_seconds(study, systems, seconds)
  return results


def score(
  study: study_plan.Study, curve: curves.Curve, budget: int, upto: int
) -> tuple[float, float]:
  """(area, mean of the last three evaluations) of one seed.

  `budget` is what the run had; it is scored over at most as many steps, `upto`.
  """
  random = study.reference.random
  over = not curves.whole(curve, budget)
  area = statistics.learning_curve_auc(
    curve.steps, curve.returns, upto, random if over else None
  )
  if over and (not len(curve.steps) or curve.steps[-1] < upto):
    return area, random
  # The last evaluation of a run may come slightly after its budget.
  seen = len(curve.steps)
  if upto < budget:
    seen = max(1, int(np.sum(curve.steps <= upto)))
  return area, statistics.last_evaluations(curve.returns[:seen])


def _scores(
  study: study_plan.Study,
  systems: Mapping[str, System],
  label: str,
  upto: int,
) -> list[tuple[float, float]]:
  budget = study.budget_of(label)
  return [score(study, c, budget, upto) for c in systems[label].curves]


def equal_seconds(
  study: study_plan.Study, systems: Mapping[str, System]
) -> float | None:
  """Seconds after which the fastest system has used its budget.

  A system's time is the median over its complete seeds. None if the study is
  not timed or no run is complete.
  """
  if not study.timed:
    return None
  ends = [
    float(np.median([c.seconds[-1] for c in kept]))
    for label, system in systems.items()
    if (
      kept := [
        c for c in system.curves if curves.whole(c, study.budget_of(label))
      ]
    )
  ]
  return min(ends) if ends else None


def score_by_seconds(
  study: study_plan.Study, curve: curves.Curve, budget: int, seconds: float
) -> tuple[float, float, float]:
  """(area, mean of the last three, environment steps) after `seconds`.

  A run whose first evaluation ends later is scored as a random policy.
  """
  random = study.reference.random
  over = not curves.whole(curve, budget)
  area = statistics.learning_curve_auc(
    curve.seconds, curve.returns, seconds, random if over else None
  )
  if not len(curve.steps):
    return area, random, 0.0
  if curve.seconds[0] > seconds:
    return random, random, 0.0  # not yet evaluated by then
  steps = float(np.interp(seconds, curve.seconds, curve.steps))
  if over and curve.seconds[-1] < seconds:
    return area, random, steps
  seen = int(np.sum(curve.seconds <= seconds))
  return area, statistics.last_evaluations(curve.returns[:seen]), steps


def _by_seconds(
  study: study_plan.Study, systems: Mapping[str, System], seconds: float
) -> dict[str, Any]:
  scores = {
    label: [
      score_by_seconds(study, c, study.budget_of(label), seconds)
      for c in system.curves
    ]
    for label, system in systems.items()
  }
  variants = {}
  for label, own in scores.items():
    variants[label] = _entry(study, own)
    variants[label]['steps'] = [s[2] for s in own]
    if label != study.baseline:
      variants[label] |= _against(study, own, scores[study.baseline])
  return {'seconds': seconds, 'variants': variants}


def _entry(
  study: study_plan.Study, scores: Sequence[tuple[float, ...]]
) -> dict[str, Any]:
  aucs, lasts = [s[0] for s in scores], [s[1] for s in scores]
  return {
    'auc': aucs,
    'last_three': lasts,
    'auc_mean': float(np.mean(aucs)),
    'last_three_mean': float(np.mean(lasts)),
    'solved': int(np.sum(np.array(lasts) >= study.threshold)),
  }


def _against(
  study: study_plan.Study,
  scores: Sequence[tuple[float, ...]],
  others: Sequence[tuple[float, ...]],
) -> dict[str, Any]:
  found: dict[str, Any] = {}
  # With a single seed the bootstrap has no width, and says nothing of others.
  enough = min(len(scores), len(others)) >= _LEAST_SEEDS
  for index, what in enumerate(('auc', 'last_three')):
    difference = statistics.bootstrap_difference(
      [s[index] for s in scores], [s[index] for s in others]
    )
    found[f'{what}_difference'] = list(difference)
    said = statistics.verdict(difference, study.reference)
    found[f'{what}_verdict'] = said if enough else 'not shown'
  return found


def _judged(goal: study_plan.Goal, lasts: Sequence[float]) -> dict[str, Any]:
  reached = int(np.sum(np.array(lasts) >= goal.last_three))
  judged = len(lasts) == goal.seeds
  return {
    **dataclasses.asdict(goal),
    'found': reached,
    'of': len(lasts),
    'met': reached >= goal.reached if judged else None,
  }
