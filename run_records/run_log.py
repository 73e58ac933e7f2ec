"""Writes a run's metrics and keeps the newest row of each kind.

The files, in metrics/, are one .jsonl for each kind of row and for each group
of nodes, and TensorBoard events with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

from run_records import metrics as metrics_lib

_NODE = 'node_'  # prefix of the kinds of rows of nodes


class RunLog:
  """Writes rows and keeps the newest. Not thread-safe: the counter locks it.

  `latest` maps each kind to its row with the most environment steps.
  """

  def __init__(self, run_dir: pathlib.Path | None):
    """Opens the files; `run_dir` None keeps only the newest rows, in memory."""
    self.latest: dict[str, dict[str, Any]] = {}
    self._writer: metrics_lib.MetricsWriter | None = None
    if run_dir is not None:
      self._writer = metrics_lib.MetricsWriter(run_dir / 'metrics')

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

  def add(self, kind: str, row: dict[str, Any]) -> None:
    """Appends a row, which must have `actor_steps`, to the file of its kind."""
    if self._writer is not None:
      self._writer.row(kind, row)
      self._writer.scalars(*tagged(kind, row))
    # An evaluation of older parameters may arrive later.
    latest = self.latest.get(kind, row)
    if row['actor_steps'] >= latest['actor_steps']:
      self.latest[kind] = row

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
    if self._writer is None:
      return
    label = node.partition('/')[0]
    per_second = {f'{name}_per_s': rate for name, rate in rates.items()}
    own = {f'own_{name}': total for name, total in totals.items()}
    numbers = {**metrics, **per_second, **own}
    # One file per group, for example for all explorers, ordered by time.
    row = {
      'node': node,
      'actor_steps': step,
      'elapsed_s': round(elapsed_s, 3),
      **numbers,
    }
    self._writer.row(f'{_NODE}{label}', row)
    self._writer.scalars(*tagged(f'{_NODE}{label}', row))

  def close(self) -> None:
    """Closes the files; may be called again."""
    if self._writer is not None:
      self._writer.close()
      self._writer = None


def tagged(kind: str, row: Mapping[str, Any]) -> tuple[dict[str, float], int]:
  """Maps a row to its numbers by TensorBoard tag, and its environment steps.

  Rows of nodes have tags such as 'explorer_0/loss', others 'evaluation/...'.
  """
  group, left_out = kind, {'actor_steps'}
  if kind.startswith(_NODE):
    group, left_out = (
      row['node'].replace('/', '_'),
      {'actor_steps', 'elapsed_s'},
    )
  numbers = {
    f'{group}/{name}': metrics_lib.number(value)
    for name, value in row.items()
    if name not in left_out
  }
  found = {tag: value for tag, value in numbers.items() if value is not None}
  return found, int(row['actor_steps'])
