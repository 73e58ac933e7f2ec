"""How far a study is: one line that stays in a terminal, else one per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import shutil
import statistics
import sys
import time
from typing import TextIO

from run_records import metrics
from studies import plan as study_plan

_PERIOD_S = 1.0


class Progress:
  """Counts runs and guesses the time left from the runs that are there."""

  def __init__(
    self,
    jobs: Sequence[study_plan.Job],
    missing: Sequence[study_plan.Job],
    parallel: Mapping[str, int],
    stream: TextIO | None = None,
  ):
    """Knows all that is to be done, over all studies.

    Args:
      jobs: of all studies, made or not.
      missing: those of them that are to be made.
      parallel: name of each study to how many of its runs go at a time.
      stream: where to write, standard output if None.
    """
    self._stream = stream or sys.stdout
    self._live = self._stream.isatty()
    self._parallel = parallel
    self._left = set(missing)
    self._total = len(jobs)
    self._running: dict[study_plan.Job, float] = {}
    self._took: dict[tuple[str, str], list[float]] = {}
    self._per_step: list[float] = []
    self._drawn = 0.0
    self._width = 0
    for job in jobs:
      if job not in self._left:
        self._learn(job, metrics.read_json(job.record)['process_s'])

  def started(self, job: study_plan.Job) -> None:
    self._running[job] = time.monotonic()

  def ended(self, job: study_plan.Job, code: int) -> None:
    """Says so in a line of its own."""
    took = time.monotonic() - self._running.pop(job)
    self._left.remove(job)
    self._learn(job, took)
    said = f'crashed with exit code {code}, see {job.log}' if code else 'done'
    self._wipe()
    self._write(
      f'[{self._count()}] {job.study}/{job.path.name}: {said} after '
      f'{_time(took)}, {self._guess()}\n'
    )

  def tick(self) -> None:
    """Draws the line that stays, once a second."""
    now = time.monotonic()
    if not self._live or now - self._drawn < _PERIOD_S:
      return
    self._drawn = now
    self._wipe()
    line = self.line()[: shutil.get_terminal_size().columns - 1]
    self._width = len(line)
    self._write(line)

  def close(self) -> None:
    self._wipe()

  def line(self) -> str:
    """Runs made, what runs and how far, time left."""
    now = time.monotonic()
    runs = ', '.join(
      f'{job.study}/{job.path.name} {_share(job):.0%} in {_time(now - began)}'
      for job, began in self._running.items()
    )
    return f'[{self._count()}] {runs}; {self._guess()}'

  def left_s(self) -> float | None:
    """Seconds until all is done, None while nothing is known."""
    now, total = time.monotonic(), 0.0
    for job in self._left:
      whole = self._duration(job)
      began = self._running.get(job)
      if began is not None:
        gone, share = now - began, _share(job)
        if share > 0:
          # What it does itself says more than what others did.
          whole = gone / share
        if whole is not None:
          whole = max(0.0, whole - gone)
      if whole is None:
        return None
      total += whole / self._parallel[job.study]
    return total

  def _duration(self, job: study_plan.Job) -> float | None:
    took = self._took.get((job.study, job.variant))
    if took:
      return statistics.median(took)
    if self._per_step:
      return statistics.median(self._per_step) * job.budget * len(job.seeds)
    shares = [
      (time.monotonic() - began) / _share(other) / other.budget
      for other, began in self._running.items()
      if _share(other) > 0
    ]
    return max(shares) * job.budget if shares else None

  def _learn(self, job: study_plan.Job, took: float) -> None:
    self._took.setdefault((job.study, job.variant), []).append(took)
    self._per_step.append(took / job.budget / len(job.seeds))

  def _count(self) -> str:
    return f'{self._total - len(self._left)}/{self._total}'

  def _guess(self) -> str:
    left = self.left_s()
    if left is None:
      return 'time left not known yet'
    return f'about {_time(left)} left' if self._left else 'all runs are there'

  def _wipe(self) -> None:
    if self._width:
      self._write('\r' + ' ' * self._width + '\r')
      self._width = 0

  def _write(self, text: str) -> None:
    self._stream.write(text)
    self._stream.flush()


def _share(job: study_plan.Job) -> float:
  """Part of the budget that was used at the last evaluation, 0 to 1."""
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    state = metrics.read_json(job.path / 'metrics' / 'counter.json')
    row = state['latest']['evaluation']
    return min(1.0, row['actor_steps_per_member'] * job.shared_by / job.budget)
  return 0.0


def _time(seconds: float) -> str:
  if seconds < 100:
    return f'{seconds:.0f} s'
  if seconds < 6000:
    return f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'
