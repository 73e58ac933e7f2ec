"""The mean of several learners' gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
import zlib

import numpy as np

from murmuration.agents.exchange import local

# Learner steps between two comparisons of the learners' parameters.
COMPARE_PERIOD = 50


class Share(NamedTuple):
  """One learner's contribution to an update, and the result for all of them."""

  update: int  # learner steps made before it
  vector: np.ndarray  # gradient [P, D]; in the result, the learners' mean
  # Of `base.Gradient`; in the result, the master's.
  statistics: dict[str, np.ndarray]
  # Of theta before the update, every COMPARE_PERIOD updates; otherwise None.
  checksum: int | None = None


class Average(local.Local):
  """The mean of L learners' gradients, each from its share of the batch.

  All apply the same update, so their parameters stay equal to the last bit. If
  the loss is a mean over B items, it equals the mean over L shares of B / L
  items, and so does its gradient. Parameters that are not learned by gradient
  (`statistics`) come from the master's share alone.
  """

  on_host = True

  def __init__(self, reduce: Callable[[Share], Share]):
    """Takes `reduce`, from this learner's share to the common one.

    It waits for the other learners, and may raise if they cannot be brought in
    step.
    """
    self._reduce = reduce

  def meet(self, learner, gradient):
    update, checksum = learner.updates, None
    if update % COMPARE_PERIOD == 0:
      # Not `parameters`, which would cache what acts in the middle of a call.
      checksum = zlib.crc32(learner.theta.numpy())
    common = self._reduce(
      Share(
        update,
        np.asarray(gradient.vector),
        {name: np.asarray(x) for name, x in gradient.statistics.items()},
        checksum,
      )
    )
    return gradient._replace(vector=common.vector, statistics=common.statistics)
