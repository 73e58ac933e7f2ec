"""What a run that trains has written since it was asked last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import pathlib
from typing import Any

from murmuration.run_records import counter_file
from murmuration.run_records import metrics
from murmuration.run_records import run_directory


def steps_made(
  totals: Mapping[str, int], steps_per_update: float | None
) -> int:
  """Environment steps of all agents.

  Args:
    totals: of the counter.
    steps_per_update: of a run without actors: the steps in which others make an
      update.
  """
  if steps_per_update is None:
    return totals.get('actor_steps', 0)
  made = totals.get('learner_steps', 0) + totals.get('skipped_updates', 0)
  return round(made * steps_per_update)


def end_of_evaluations(path: pathlib.Path) -> int:
  """Bytes of what a run has evaluated so far; 0 where there is no run."""
  run = run_directory.RunDirectory(path)
  return metrics.end_of_rows(run.metrics_directory / 'evaluation.jsonl')


class News:
  """Reads the files of a run: they are all that tells how far it is."""

  def __init__(
    self,
    path: pathlib.Path,
    budget: int,
    steps_per_update: float | None = None,
    told: int = 0,
  ):
    """Reads from here on.

    Args:
      path: of the run.
      budget: environment steps of all agents.
      steps_per_update: see `steps_made`.
      told: bytes of evaluations that are no news, see `end_of_evaluations`.
    """
    self._directory = run_directory.RunDirectory(path).metrics_directory
    self._budget, self._steps_per_update = budget, steps_per_update
    self._told = told
    self._warned: set[str] = set()

  def __call__(self) -> Iterator[tuple[str, Any]]:
    """('tick', ...), ('evaluation', row) for each new one, ('warning', line).

    What cannot be read now comes the next time.
    """
    for read in (self._tick, self._evaluations):
      try:
        yield from read()
      except OSError:
        pass
      except ValueError as e:  # a file that is broken, and remains so
        if read.__name__ not in self._warned:
          self._warned.add(read.__name__)
          yield 'warning', f'warning: callbacks miss it: {e}'

  def _tick(self) -> Iterator[tuple[str, Any]]:
    found = counter_file.counted(self._directory)
    if found:
      totals = found['totals']
      tick = {
        'steps': steps_made(totals, self._steps_per_update),
        'budget': self._budget,
        'elapsed_s': found['elapsed_s'],
        'totals': totals,
      }
      yield 'tick', tick

  def _evaluations(self) -> Iterator[tuple[str, Any]]:
    path = self._directory / 'evaluation.jsonl'
    for row, end in metrics.rows(path, self._told):
      self._told = end
      yield 'evaluation', row
