"""Writes a run's metrics and keeps the newest row of each kind.

The files, in metrics/, are one .jsonl for each kind of row and for each group
of nodes, and TensorBoard events with the same numbers.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
import logging
import math
import pathlib
from typing import Any

from murmuration.run_records import metrics as metrics_lib

_logger = logging.getLogger(__name__)
# Kinds of rows that come with each episode or generation and never stop.
_ENDLESS = frozenset(('supervisor', 'generation'))
_REMEMBERED = 1000  # rows of a node
_PERIOD_S = 1.0
_SHARE = 1e-4


class RunLog:
  """Writes rows and keeps the newest. Not thread-safe: the counter locks it.

  Attributes:
    latest: kind to its newest row; without the kinds of nodes.
    left_out: kind to rows that came after one with more environment steps.
  """

  def __init__(self, run_dir: pathlib.Path | None):
    """Opens the files; `run_dir` None keeps only the newest rows, in memory."""
    self.latest: dict[str, dict[str, Any]] = {}
    self.left_out: collections.Counter[str] = collections.Counter()
    self._steps: dict[str, int] = {}  # kind to those of its newest row
    # Kind to when a row was written, if _ENDLESS, and to its newest left out.
    self._written: dict[str, float] = {}
    self._unwritten: dict[str, dict[str, Any]] = {}
    # Node to the times of day of its newest rows.
    self._made: dict[str, collections.deque[float]] = collections.defaultdict(
      lambda: collections.deque(maxlen=_REMEMBERED)
    )
    self._writer: metrics_lib.MetricsWriter | None = None
    if run_dir is None:
      return
    self._writer = metrics_lib.MetricsWriter(run_dir / 'metrics')
    for kind, row in metrics_lib.newest_rows(run_dir / 'metrics').items():
      self._steps[kind] = row.get('actor_steps', 0)
      if not kind.startswith(metrics_lib.NODE):
        self.latest[kind] = row
        # It comes again if its node has not heard that it is written.
        self._is_new(row.get('node', ''), row)

  def trouble(self) -> str:
    """Writes rows that wait in memory. Returns why some still wait, or ''."""
    if self._writer is None or self._writer.error is None:
      return ''
    self._writer.retry()
    if self._writer.error is None:
      return ''
    return (
      f'metrics cannot be written ({self._writer.error}): '
      f'{self._writer.waiting:,} rows wait in memory for room'
    )

  @property
  def closed(self) -> bool:
    """Whether rows are not written, never or no longer."""
    return self._writer is None

  def add(
    self,
    node: str,
    kind: str,
    row: Mapping[str, Any],
    step: int,
    elapsed_s: float,
  ) -> None:
    """Appends a node's row to the file of its kind.

    Args:
      node: who sends it.
      kind: see `MetricsWriter.row`.
      row: as in services/counter.py, `log`.
      step: environment steps so far, for a row that does not say.
      elapsed_s: seconds of the run so far.
    """
    if not self._is_new(node, row):
      return
    age_s = row.get('age_s', 0.0)
    row = {
      'node': node,
      'elapsed_s': round(elapsed_s - age_s, 3),
      **{name: value for name, value in row.items() if name != 'age_s'},
    }
    if kind in _ENDLESS:
      passed_s = elapsed_s - self._written.get(kind, -math.inf)
      if _PERIOD_S < period_s(elapsed_s) and passed_s < period_s(elapsed_s):
        self._unwritten[kind] = {'actor_steps': step, **row}
        return
      self._written[kind] = elapsed_s
      self._unwritten.pop(kind, None)
    self._append(kind, row, step)

  def node(
    self,
    node: str,
    metrics: Mapping[str, Any],
    rates: Mapping[str, float],
    totals: Mapping[str, int],
    step: int,
    elapsed_s: float,
  ) -> None:
    """Appends a row of one node's numbers; `step` is of all nodes."""
    row = {'node': node, 'elapsed_s': round(elapsed_s, 3), **metrics}
    row |= {f'{name}_per_s': rate for name, rate in rates.items()}
    row |= {f'own_{name}': total for name, total in totals.items()}
    # One file per group, for example for all explorers, ordered by time.
    self._append(f'{metrics_lib.NODE}{node.partition("/")[0]}', row, step)

  def close(self) -> None:
    """Writes what was left out last, and closes the files."""
    for kind, row in self._unwritten.items():
      self._append(kind, row, row['actor_steps'])
    self._unwritten.clear()
    if self._writer is not None:
      self._writer.close()
      self._writer = None

  def _is_new(self, node: str, row: Mapping[str, Any]) -> bool:
    """Whether the node has not sent the row before; by its time of day."""
    made = row.get('unix_time_s')
    if made is None:
      return True
    if made in self._made[node]:
      return False
    self._made[node].append(made)
    return True

  def _append(self, kind: str, row: dict[str, Any], step: int) -> None:
    """Appends a row, unless one with more environment steps is there."""
    before = self._steps.get(kind, 0)
    # The total of a counter that was killed may lag behind its rows.
    steps = row.setdefault('actor_steps', max(step, before))
    if steps < before:
      self.left_out[kind] += 1
      _logger.warning(
        'A row of %s after %d steps is left out: one after %d is there.',
        kind,
        steps,
        before,
      )
      return
    self._steps[kind] = steps
    if not kind.startswith(metrics_lib.NODE):
      self.latest[kind] = row
    if self._writer is not None:
      self._writer.row(kind, row)
      self._writer.scalars(*metrics_lib.tagged(kind, row))


def period_s(elapsed_s: float) -> float:
  """Seconds between two rows of what never stops, in a run of this length.

  So that the rows of a run of weeks are as many as can be read, too.
  """
  return max(_PERIOD_S, _SHARE * elapsed_s)
