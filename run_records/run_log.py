"""What a run leaves behind of its numbers: rows, scalars, the newest of each.

The counter's files in metrics/: one .jsonl for each kind of row, one for each
kind of node, and the same numbers for TensorBoard.
"""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

from run_records import metrics as metrics_lib

_NODE = 'node_'  # of the kind of rows of a group of nodes


class RunLog:
  """Writes rows, and keeps the newest. Not thread-safe: the counter locks.

  Attributes:
    latest: kind to the newest row, by environment steps.
  """

  def __init__(self, run_dir: pathlib.Path | None):
    """Opens the files.

    Args:
      run_dir: of the run; None keeps everything in memory.
    """
    self.latest: dict[str, dict[str, Any]] = {}
    self._writer: metrics_lib.MetricsWriter | None = None
    if run_dir is not None:
      self._writer = metrics_lib.MetricsWriter(run_dir / 'metrics')

  def trouble(self) -> str:
    """Why rows wait in memory, in a sentence; tried again. '' if none do."""
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
    """Whether nothing is written: never, or no longer."""
    return self._writer is None

  def add(self, kind: str, row: dict[str, Any]) -> None:
    """Appends a row, which has its `actor_steps`, to the file of its kind."""
    if self._writer is not None:
      self._writer.row(kind, row)
      self._writer.scalars(*tagged(kind, row))
    # Evaluations of older parameters may come later.
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
    """Appends the numbers of one node.

    Args:
      node: label and index, for instance 'explorer/0'.
      metrics: its present numbers.
      rates: count name to increments per second.
      totals: count name to its own total.
      step: environment steps of all nodes.
      elapsed_s: seconds that the run has been running.
    """
    if self._writer is None:
      return
    label = node.partition('/')[0]
    per_second = {f'{name}_per_s': rate for name, rate in rates.items()}
    own = {f'own_{name}': total for name, total in totals.items()}
    numbers = {**metrics, **per_second, **own}
    # In its own file per group: all explorers together, by time.
    row = {
      'node': node,
      'actor_steps': step,
      'elapsed_s': round(elapsed_s, 3),
      **numbers,
    }
    self._writer.row(f'{_NODE}{label}', row)
    self._writer.scalars(*tagged(f'{_NODE}{label}', row))

  def close(self) -> None:
    """Closes the files. Safe to call twice."""
    if self._writer is not None:
      self._writer.close()
      self._writer = None


def tagged(kind: str, row: Mapping[str, Any]) -> tuple[dict[str, float], int]:
  """The numbers of a row by their tags, and its step: what a graph shows.

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
