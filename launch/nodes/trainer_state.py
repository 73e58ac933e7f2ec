"""What a trainer keeps of itself, so that a run can be resumed.

In RUN/checkpoints/: TRAINER.npz (the learner whole) and replay/shard_<i>/.
"""

from __future__ import annotations

import logging
import pathlib
import time
from typing import Any

import numpy as np

from agents import learner
from launch.nodes import replay_host
from launch.nodes import replay_saves
from run_records import checkpoints
from run_records import run_directory

_logger = logging.getLogger(__name__)
_PERIOD_S = 5.0  # between checkpoints of the learner


class State:
  """Saves a learner and the replay beside it; gives them back to a resumed run.

  A trainer that died is not a run that is resumed: its successor in the same
  run gets no learner back, so that an explorer starts from theta_star, and
  nothing that may have killed it lives on (specs/pso.md, section 7).
  """

  def __init__(
    self,
    run_dir: str | None,
    node: str,
    host: replay_host.ReplayHost | None,
    replay_period_s: float,
  ):
    """Looks up what is there.

    Args:
      run_dir: of the run; None keeps nothing.
      node: name of the node.
      host: of the replay to be saved; None saves none.
      replay_period_s: between two saves of it, at least.
    """
    self._path: pathlib.Path | None = None
    self._start = 0
    if run_dir is not None:
      name = f'{node.replace("/", "-")}.npz'
      self._path = checkpoints.directory(run_dir) / name
      self._start = _starts(run_dir)
    self._replay_saves = replay_saves.ReplaySaves(
      [] if host is None else [host], replay_period_s
    )
    self._saved = time.monotonic()

  def restore(self, learner: learner.TFLearner) -> bool:
    """Gives a learner what an earlier start of the run has saved, if it has.

    Raises:
      ValueError: it was another learner, with other members or networks.
    """
    if self._path is None or not self._path.exists():
      return False
    with np.load(self._path) as saved:
      arrays = dict(saved)
    if int(arrays.pop('start')) >= self._start:
      return False
    learner.restore(arrays)
    _logger.info('Going on from learner step %d.', learner.updates)
    return True

  def save_now_and_then(self, learner: learner.TFLearner) -> None:
    if time.monotonic() - self._saved >= _PERIOD_S:
      self.save(learner, replay=self._replay_saves.due())

  def save(self, learner: learner.TFLearner, replay: bool) -> None:
    """Saves the learner, and replay if told to."""
    if self._path is None:
      return
    self._saved = time.monotonic()
    checkpoints.write(self._path, start=self._start, **learner.save())
    if replay:
      self._replay_saves.save(learner.updates)


def _starts(run_dir: Any) -> int:
  """How often the run has been started or resumed."""
  try:
    return len(run_directory.RunDirectory(run_dir).commands())
  except FileNotFoundError:
    return 0
