"""Progress of a study: a line for each run that ends, with the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import statistics

from murmuration.run_records import jsonable
from murmuration.studies import plan as study_plan


class Progress:
  """Counts runs, and estimates the time left from the finished runs."""

  def __init__(
    self,
    jobs: Sequence[study_plan.Job],
    missing: Sequence[study_plan.Job],
    parallel: Mapping[str, int],
  ):
    """Reads the durations of the jobs that have a record.

    `missing` are the jobs to be run, and `parallel` numbers of concurrent runs
    by the name of the study.
    """
    self._parallel = parallel
    self._left = set(missing)
    self._total = len(jobs)
    self._took: dict[tuple[str, str], list[float]] = {}
    self._per_step: list[float] = []
    for job in jobs:
      if job not in self._left:
        self._learn(job, jsonable.read(job.record)['process_s'])

  def ended(self, job: study_plan.Job, code: int, took_s: float) -> None:
    """Prints how a run ended, and an estimate of the time left."""
    self._left.remove(job)
    self._learn(job, took_s)
    said = f'crashed with exit code {code}, see {job.log}' if code else 'done'
    left = 'all runs are there'
    if self._left:
      left = f'about {_time(self.left_s())} left'
    print(
      f'[{self._total - len(self._left)}/{self._total}] '
      f'{job.study}/{job.path.name}: {said} after {_time(took_s)}, {left}',
      flush=True,
    )

  def left_s(self) -> float:
    """Estimated seconds until all is done; needs at least one finished run."""
    return sum(
      self._duration(job) / self._parallel[job.study] for job in self._left
    )

  def _duration(self, job: study_plan.Job) -> float:
    took = self._took.get((job.study, job.variant))
    if took:
      return statistics.median(took)
    return statistics.median(self._per_step) * job.budget * len(job.seeds)

  def _learn(self, job: study_plan.Job, took_s: float) -> None:
    self._took.setdefault((job.study, job.variant), []).append(took_s)
    self._per_step.append(took_s / job.budget / len(job.seeds))


def _time(seconds: float) -> str:
  if seconds < 100:
    return f'{seconds:.0f} s'
  if seconds < 6000:
    return f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'
