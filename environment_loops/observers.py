"""Observers watch experience without changing it."""

import collections
import dataclasses

import numpy as np

from murmuration.environment_loops import vector


@dataclasses.dataclass(frozen=True)
class Finished:
  """An episode that ended: index of its environment, and its return."""

  index: int
  episode_return: float


class EpisodeTracker:
  """Sums up the episodes of `num` environments, K, stepped together.

  Returns are undiscounted sums of unscaled rewards, added in float64.
  `recent_mean` covers the latest `window` episodes.
  """

  def __init__(self, num: int, window: int = 100):
    if num < 1 or window < 1:
      raise ValueError(
        f'num={num} environments and window={window} episodes; both must be at '
        f'least 1.'
      )
    self._returns = np.zeros(num, np.float64)
    self._recent: collections.deque[Finished] = collections.deque(maxlen=window)

  @property
  def recent_mean(self) -> float | None:
    """Mean return of the latest episodes; None before the first end."""
    if not self._recent:
      return None
    return float(np.mean([done.episode_return for done in self._recent]))

  def observe(self, step: vector.StepBatch) -> list[Finished]:
    """Adds one step; returns the whole episodes that ended in it, by index."""
    self._returns += step.reward
    if not np.count_nonzero(step.last):
      return []
    finished = []
    whole = step.last
    if step.valid is not None:
      # Part of an episode says nothing about its return.
      whole = step.last & step.valid
    for index in np.flatnonzero(whole).tolist():
      finished.append(Finished(index, float(self._returns[index])))
    self._returns[step.last] = 0.0
    self._recent.extend(finished)
    return finished

  def restart(self) -> None:
    """Drops unfinished episodes; call it when the environments are reset."""
    self._returns[:] = 0.0
