"""The parameters that were evaluated best, kept for who wants to play them."""

from __future__ import annotations

import os

import numpy as np

from launch import pulse
from run_records import checkpoints


class Best:
  """Keeps the best parameters of a run in its checkpoints.

  A confirmed return counts before one that was not; of equal returns the later
  one counts. The best of many evaluations is partly luck: to know what it is
  worth, play it again. A run that is resumed goes on learning: what comes then
  is not held against a confirmation of before.
  """

  def __init__(self, run_dir: str | os.PathLike[str] | None):
    """Takes up what an earlier start of the run has kept.

    Args:
      run_dir: of the run; None keeps nothing.
    """
    self._rank = (False, -np.inf, -1)
    self._path = None
    if run_dir is None:
      return
    self._path = checkpoints.directory(run_dir) / checkpoints.BEST
    kept = checkpoints.read_to_play(self._path)
    if kept is not None:
      self._rank = (
        bool(kept['confirmed']) and pulse.life()[1] > 1,
        float(kept['return_mean']),
        int(kept['steps']),
      )

  def offer(
    self, theta: np.ndarray, mean: float, steps: int, confirmed: bool = False
  ) -> None:
    """Keeps `theta [D]` if it is better than what is kept.

    Args:
      theta: what was evaluated.
      mean: return; NaN, of broken episodes, is never the best.
      steps: environment steps of one agent that it had learned from.
      confirmed: whether it was played again to know.
    """
    rank = (confirmed, float(mean), steps)
    if self._path is None or np.isnan(mean) or rank < self._rank:
      return
    with pulse.survives(checkpoints.BEST):
      checkpoints.write(
        self._path, theta=theta, return_mean=mean, steps=steps,
        confirmed=confirmed,
      )  # fmt: skip
      self._rank = rank
