"""The mean of several learners' gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
import zlib

import numpy as np

from agents.exchange import local

# Learner steps between two comparisons of what averaging learners have.
COMPARE_PERIOD = 50


class Share(NamedTuple):
  """What one learner brings to an update, and what all of them get back.

  Attributes:
    update: learner steps made before it.
    vector: gradient [P, D]; coming back, the mean over the learners.
    statistics: of `base.Gradient`; coming back, the master's.
    checksum: of theta before the update, now and then; else None.
  """

  update: int
  vector: np.ndarray
  statistics: dict[str, np.ndarray]
  checksum: int | None = None


class Average(local.Local):
  """The mean of L learners' gradients, each of its share of the batch.

  All apply the same update, so their parameters stay equal to the last bit. A
  loss that is a mean over B items is the mean over L shares of B / L, and so is
  its gradient. What is not learned by gradient (`statistics`) is the master's,
  of its share.
  """

  on_host = True

  def __init__(self, reduce: Callable[[Share], Share]):
    """Takes what finds the mean.

    Args:
      reduce: from this learner's share to the common one; waits for the other
        learners, and may raise where they cannot come together.
    """
    self._reduce = reduce

  def meet(self, learner, gradient):
    update, checksum = learner.updates, None
    if update % COMPARE_PERIOD == 0:
      checksum = zlib.crc32(learner.parameters())
    common = self._reduce(
      Share(
        update,
        np.asarray(gradient.vector),
        {name: np.asarray(x) for name, x in gradient.statistics.items()},
        checksum,
      )
    )
    return gradient._replace(vector=common.vector, statistics=common.statistics)
