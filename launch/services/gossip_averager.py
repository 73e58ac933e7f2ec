"""The mean of all workers of gossip: the node that finds it, and who asks it.

The averager is a node of its own. A round is closed when all that are there
have brought their parameters, or after `timeout_s` without those that are late;
they are not waited for again before they come by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import logging
import threading
import time
from typing import Any

import numpy as np

from agents import parameters
from agents.exchange import mixing
from launch import rpc

_logger = logging.getLogger(__name__)
_DEADLINE_S = 2.0
# How long the averager holds a call before it says "not yet".
_HOLD_S = 1.0
_KEPT_ROUNDS = 2


class _Round:
  """The parameters that have come for one mean."""

  def __init__(self, closes_at: float):
    self.closes_at = closes_at
    self.parts: dict[int, tuple[int, np.ndarray]] = {}
    self.refused: set[int] = set()
    self.mean: np.ndarray | None = None


class Averager:
  """Finds the mean of all workers, round by round. Keeps nothing else."""

  serves = ('average', 'leave')

  def __init__(self, num_workers: int, timeout_s: float):
    """Takes how many there are, and how long a round waits for the last."""
    self._timeout_s = timeout_s
    self._changed = threading.Condition()
    self._here = set(range(num_workers))
    self._rounds: dict[int, _Round] = {}

  def average(
    self, worker: int, number: int, steps: int, theta: np.ndarray
  ) -> tuple[bool, np.ndarray | None]:
    """Takes a worker's part of a round; the same one may come again.

    Returns:
      Whether the round is closed, and then its mean if this part is in it.
    """
    with self._changed:
      if number not in self._rounds:
        if any(number < other for other in self._rounds):
          return True, None
        self._rounds[number] = _Round(time.monotonic() + self._timeout_s)
        for old in sorted(self._rounds)[:-_KEPT_ROUNDS]:
          del self._rounds[old]
      if number == max(self._rounds):
        # Who is a round behind would hold up each that it is not yet in.
        self._here.add(worker)
      own = self._rounds[number]
      if not np.isfinite(theta).all():
        _logger.warning('Refused parameters of worker %d: not finite.', worker)
        own.refused.add(worker)  # so that nobody waits for it
        self._changed.notify_all()
        return True, None
      if own.mean is None:
        own.parts[worker] = steps, np.array(theta)
      until = time.monotonic() + _HOLD_S
      while own.mean is None:
        now = time.monotonic()
        late = self._here - set(own.parts) - own.refused
        if not late or now >= own.closes_at:
          self._close(own, late)
        elif now >= until:
          return False, None
        else:
          self._changed.wait(min(until, own.closes_at) - now)
      return True, own.mean if worker in own.parts else None

  def leave(self, worker: int) -> None:
    """A worker learns no more: rounds do not wait for it."""
    with self._changed:
      self._here.discard(worker)
      self._changed.notify_all()

  def _close(self, own: _Round, late: set[int]) -> None:
    if late:
      _logger.warning('A mean without the workers %s.', sorted(late))
      self._here -= late
    order = sorted(own.parts)
    own.mean = mixing.average(
      [own.parts[j][1] for j in order], [own.parts[j][0] for j in order]
    )
    self._changed.notify_all()


class Averaging:
  """A worker's side of the averager; without an answer there is no mean."""

  def __init__(self, worker: int, averager: Any, timeout_s: float):
    self._worker = worker
    self._averager = averager.with_deadline(_HOLD_S + _DEADLINE_S)
    self._timeout_s = timeout_s

  def __call__(
    self,
    number: int,
    steps: int,
    theta: np.ndarray,
    over: Callable[[], bool],
  ) -> np.ndarray | None:
    # A round closes within the time-out of its first part.
    until = time.monotonic() + 2 * self._timeout_s
    try:
      while not over() and time.monotonic() < until:
        closed, mean = self._averager.average(
          self._worker, number, steps, theta
        )
        if closed:
          return mean
    except (rpc.Unavailable, rpc.RemoteError) as e:
      _logger.warning('No mean this time: %s', e)
    return None

  def leave(self) -> None:
    try:
      self._averager.leave(self._worker)
    except (rpc.Unavailable, rpc.RemoteError):
      pass  # it waits once, and then no more


class Mean:
  """What an evaluator asks: the mean of the parameters of all workers."""

  def __init__(self, workers: Sequence[Any], layout: parameters.Layout):
    self._workers = workers
    self._layout = layout

  def get_parameters(self, have_version: int) -> dict[str, Any]:
    """{'version', 'theta'}: of those that answer; version is the smallest.

    Raises:
      rpc.Unavailable: none does.
    """
    found, away = [], None
    for client in self._workers:
      try:
        newest = client.get_parameters(-1)
      except (rpc.Unavailable, rpc.RemoteError) as e:
        away = e
        continue
      if newest['theta'] is not None:
        found.append(parameters.decode(self._layout, newest['theta']))
    if not found:
      if away is not None:
        raise away
      return {'version': -1, 'theta': None}
    version = min(version for version, _ in found)
    if version == have_version:
      return {'version': version, 'theta': None}
    mean = mixing.average([theta for _, theta in found], [1] * len(found))
    encoded = parameters.encode(self._layout, version, mean)
    return {'version': version, 'theta': encoded}
