"""The gradient alone."""

from __future__ import annotations

from murmuration.agents.exchange import base


class Local(base.Exchange):
  """The gradient alone: theta <- theta - rate * u."""

  def apply(self, learner, gradient):
    return learner.apply(gradient).finite
