"""A trainer's line to other nodes: what makes its members more than agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agents import learner
from agents.exchange import base as exchange_base
from agents.exchange import local as local_exchange
from environment_loops import observers

if TYPE_CHECKING:
  from launch.nodes import trainer as trainer_lib


class Link:
  """What a trainer hears from other nodes. This one hears nothing.

  Attributes:
    exchange: what the learner's call does with what was heard.
    shared_start: whether all members of a run begin with the same parameters.
  """

  shared_start = False

  def __init__(self):
    self.exchange: exchange_base.Exchange = local_exchange.Local()

  def begin(self, trainer: trainer_lib.Trainer) -> None:
    """Called once, with the learner built and nothing stepped."""

  def initial(self, theta: np.ndarray) -> np.ndarray:
    """First parameters [P, D] of the members, given fresh ones."""
    return theta

  def episode_ended(self, done: observers.Finished) -> None:
    """A member's training episode ended."""

  def updated(self, result: learner.StepResult) -> None:
    """The learner made a call."""

  def sync(self) -> None:
    """Called between the learner's calls."""

  def replacement(self, member: int) -> np.ndarray | None:
    """Parameters [D] for a member whose own are not finite, if there are."""
    return None

  def metrics(self) -> dict[str, float]:
    return {}

  def close(self) -> None:
    """The loop is over."""
