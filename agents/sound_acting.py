"""Acting with the newest parameters, or with the last that were finite."""

from __future__ import annotations

from collections.abc import Sequence
import logging
from typing import NamedTuple

import numpy as np

from agents import base
from agents import batched_acting

_logger = logging.getLogger(__name__)


class Parameters(NamedTuple):
  """Parameters `theta [D]`; `version` is the learner steps they have had."""

  version: int
  theta: np.ndarray


class Acted(NamedTuple):
  """The result of a batch."""

  actions: list[np.ndarray | None]  # [K, ...]; None if outputs are not finite
  version: int  # of the parameters that chose the actions
  passes: int  # number of forward passes


class Policy:
  """Acts for batches of actors of one agent, with `num_envs` environments each.

  `not_finite` counts batches for which the newest parameters failed.
  """

  def __init__(self, agent: base.Agent, num_envs: int):
    self._acting = batched_acting.Acting(agent, num_envs)
    self._sound: Parameters | None = None
    self.not_finite = 0

  def act(
    self,
    newest: Parameters,
    requests: Sequence[batched_acting.Request],
  ) -> Acted:
    """Acts with the newest parameters, or the last that gave finite outputs."""
    actions: list[np.ndarray | None]
    try:
      actions = [*self._acting.act(newest.theta, requests)]
      self._sound, version, passes = newest, newest.version, 1
    except batched_acting.NotFinite as e:
      sound = self._sound or newest
      self._say(e, newest, sound)
      actions, passes = self._act_apart(sound, requests)
      version, passes = sound.version, passes + 1
    if not self._acting.batchable:
      passes *= len(requests)
    return Acted(actions, version, passes)

  def _act_apart(
    self, parameters: Parameters, requests: Sequence[batched_acting.Request]
  ) -> tuple[list[np.ndarray | None], int]:
    """Actions of the requests with finite outputs, and the passes it took."""
    actions: list[np.ndarray | None] = [None] * len(requests)
    left, passes = list(range(len(requests))), 0
    while left:
      passes += 1
      try:
        found = self._acting.act(parameters.theta, [requests[i] for i in left])
      except batched_acting.NotFinite as e:
        left = [i for place, i in enumerate(left) if place not in e.broken]
        continue
      for i, action in zip(left, found):
        actions[i] = action
      break
    return actions, passes

  def _say(
    self, error: Exception, newest: Parameters, sound: Parameters
  ) -> None:
    self.not_finite += 1
    if self.not_finite == 1:
      _logger.warning(
        'Parameters of version %d: %s Acting with version %d; such batches '
        'are counted as not_finite.',
        newest.version,
        error,
        sound.version,
      )
