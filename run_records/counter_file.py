"""What the counter of a run has saved: launch/services/counter.py writes it."""

from __future__ import annotations

import pathlib
from typing import Any

from murmuration.run_records import checkpoints


def counted(directory: pathlib.Path) -> dict[str, Any]:
  """The newest counts in RUN/metrics, also while a counter is running.

  They never fall from one call to the next.

  Returns:
    'totals': count name to total of all nodes; 'node_totals': node to its own;
    'elapsed_s', and more of the counter. {} if nothing is counted.
  """
  return checkpoints.read_state(directory / checkpoints.COUNTER) or {}
