"""What a worker keeps of itself: RUN/checkpoints/WORKER.npz, and its replay."""

from __future__ import annotations

from collections.abc import Sequence
import logging
import pathlib
import time
from typing import Any

import numpy as np

from launch.nodes import replay_saves
from run_records import checkpoints
from run_records import run_directory

_logger = logging.getLogger(__name__)
_PERIOD_S = 5.0  # between checkpoints of the learner


class Saves:
  """Saves a learner and the replay beside it, and gives the learner back."""

  def __init__(
    self,
    run_dir: str | None,
    node: str,
    hosts: Sequence[Any],
    replay_period_s: float,
  ):
    """Looks up what is there.

    Args:
      run_dir: of the run; None keeps nothing.
      node: name of the worker.
      hosts: `replay_host.ReplayHost`s, or clients of them, that it saves.
      replay_period_s: between two saves of those, at least.
    """
    self._path: pathlib.Path | None = None
    self._start = 0
    if run_dir is not None:
      name = f'{node.replace("/", "-")}.npz'
      self._path = checkpoints.directory(run_dir) / name
      self._start = _starts(run_dir)
    self._replay_saves = replay_saves.ReplaySaves(hosts, replay_period_s)
    self._saved = time.monotonic()

  def restore(self, learner: Any, again: bool) -> bool:
    """Gives a learner what was saved, if there is something for it.

    Args:
      learner: takes it.
      again: whether what this start of the run has saved is taken too; if not,
        only what an earlier one has, which is resumed. What a node had that
        died may be what killed it.

    Raises:
      ValueError: it was another learner, with other members or networks.
    """
    if self._path is None or not self._path.exists():
      return False
    with np.load(self._path) as saved:
      arrays = dict(saved)
    start = int(arrays.pop('start'))
    if start >= self._start and not again:
      return False
    learner.restore(arrays)
    _logger.info('Going on from learner step %d.', learner.updates)
    return True

  def due(self) -> bool:
    """Whether it is time for the next."""
    return time.monotonic() - self._saved >= _PERIOD_S

  def save(self, learner: Any, last: bool = False) -> bool:
    """Saves the learner, and replay where that is due or this is the last.

    Returns:
      Whether replay is kept as it is now.
    """
    self._saved = time.monotonic()
    if self._path is None:
      return True
    checkpoints.write(self._path, start=self._start, **learner.save())
    if last or self._replay_saves.due():
      return self._replay_saves.save(learner.updates, last=last)
    return False


def write_acting(run_dir: str | None, theta: np.ndarray, steps: int) -> None:
  """Writes what acts, `theta [P, D]`, for whoever wants to play it."""
  if run_dir is not None:
    path = checkpoints.directory(run_dir) / checkpoints.AGENTS
    checkpoints.write(path, theta=theta, steps=steps)


def _starts(run_dir: Any) -> int:
  """How often the run has been started or resumed."""
  try:
    return len(run_directory.RunDirectory(run_dir).commands())
  except FileNotFoundError:
    return 0
