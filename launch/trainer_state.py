"""What a trainer keeps of itself, so that a run can be resumed.

In RUN/checkpoints/: TRAINER.npz (the learner whole) and replay/shard_<i>/.
"""

from __future__ import annotations

import logging
import pathlib
import time
from typing import Any

import numpy as np

from agents import learning
from launch import checkpoints
from launch import replay_host
from launch import run_directory

_logger = logging.getLogger(__name__)
# Seconds between checkpoints of the learner, and of replay.
_PERIOD_S = 5.0
_REPLAY_PERIOD_S = 120.0
# Saving replay holds up the loop: of all its time, at most one part in so many.
_REPLAY_SHARE = 20


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
  ):
    """Looks up what is there.

    Args:
      run_dir: of the run; None keeps nothing.
      node: name of the node.
      host: of the replay to be saved; None saves none.
    """
    self._path: pathlib.Path | None = None
    self._start = 0
    if run_dir is not None:
      name = f'{node.replace("/", "-")}.npz'
      self._path = checkpoints.directory(run_dir) / name
      self._start = _starts(run_dir)
    self._host = host
    self._saved = self._replay_saved = time.monotonic()
    self._replay_period_s = _REPLAY_PERIOD_S

  def restore(self, learner: learning.TFLearner) -> bool:
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

  def save_now_and_then(self, learner: learning.TFLearner) -> None:
    now = time.monotonic()
    if now - self._saved >= _PERIOD_S:
      replay = now - self._replay_saved >= self._replay_period_s
      self.save(learner, replay)

  def save(self, learner: learning.TFLearner, replay: bool) -> None:
    """Saves the learner, and replay if told to."""
    if self._path is None:
      return
    self._saved = time.monotonic()
    checkpoints.write(self._path, start=self._start, **learner.save())
    if not replay or self._host is None:
      return
    try:
      self._host.save({'learner_steps': learner.updates})
    except (OSError, RuntimeError) as e:
      _logger.warning('Replay was not checkpointed: %s', e)
    self._replay_saved = time.monotonic()
    took_s = self._replay_saved - self._saved
    self._replay_period_s = max(_REPLAY_PERIOD_S, _REPLAY_SHARE * took_s)


def _starts(run_dir: Any) -> int:
  """How often the run has been started or resumed."""
  try:
    return len(run_directory.RunDirectory(run_dir).commands())
  except FileNotFoundError:
    return 0
