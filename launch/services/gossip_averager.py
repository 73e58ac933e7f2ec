"""The mean of all gossip workers: the averager node and its clients.

A round ends when all present workers have sent their parameters, or after
`timeout_s` without the late ones. The averager does not wait for a late worker
again until it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import logging
import threading
import time
from typing import Any

import numpy as np

from murmuration.launch import rpc

_logger = logging.getLogger(__name__)
_DEADLINE_S = 2.0
_HOLD_S = 1.0  # the averager blocks a call before it answers "not yet", at most
_KEPT_ROUNDS = 2


def average(vectors: Sequence[np.ndarray], steps: Sequence[float]):
  """`sum_j q_j theta_j`, with `q_j = m_j / sum m` for environment steps m."""
  weights = np.asarray(steps, np.float64)
  weights = weights / weights.sum()
  total = np.zeros_like(vectors[0])
  for weight, vector in zip(weights, vectors):
    total += vector.dtype.type(weight) * vector
  return total


class _Round:
  """The parameters received for one mean."""

  def __init__(self, closes_at: float):
    self.closes_at = closes_at
    self.parts: dict[int, tuple[int, np.ndarray]] = {}
    self.refused: set[int] = set()
    self.mean: np.ndarray | None = None


class Averager:
  """Computes the mean of all workers, round by round. Nothing is saved."""

  serves = ('average', 'leave', 'meet')

  def __init__(self, num_workers: int, timeout_s: float = 10.0):
    self._timeout_s = timeout_s
    self._changed = threading.Condition()
    self._here = set(range(num_workers))
    self._rounds: dict[int, _Round] = {}

  def meet(self) -> None:
    """Answers a worker that asks whether this node can be reached."""

  def average(
    self, worker: int, number: int, steps: int, theta: np.ndarray
  ) -> tuple[bool, np.ndarray | None]:
    """Takes a worker's `theta` for round `number`; the call may be repeated.

    Returns:
      Whether the round has ended, and the mean, weighted by `steps`, if `theta`
      is part of it.
    """
    with self._changed:
      if number not in self._rounds:
        if any(number < other for other in self._rounds):
          return True, None
        self._rounds[number] = _Round(time.monotonic() + self._timeout_s)
        for old in sorted(self._rounds)[:-_KEPT_ROUNDS]:
          del self._rounds[old]
      if number == max(self._rounds):
        # A worker that is a round behind would delay every newer round.
        self._here.add(worker)
      own = self._rounds[number]
      if not np.isfinite(theta).all():
        _logger.warning('Refused parameters of worker %d: not finite.', worker)
        own.refused.add(worker)  # The round does not wait for it.
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
    """Removes a worker that has finished: no round waits for it."""
    with self._changed:
      self._here.discard(worker)
      self._changed.notify_all()

  def _close(self, own: _Round, late: set[int]) -> None:
    if late:
      _logger.warning('A mean without the workers %s.', sorted(late))
      self._here -= late
    order = sorted(own.parts)
    own.mean = average(
      [own.parts[j][1] for j in order], [own.parts[j][0] for j in order]
    )
    self._changed.notify_all()


class Averaging:
  """A worker's client of the averager; None if there is no mean in time."""

  def __init__(self, worker: int, averager: Any, timeout_s: float):
    self._worker = worker
    self._averager = averager.with_deadline(_HOLD_S + _DEADLINE_S)
    self._timeout_s = timeout_s

  def meet(self, patience_s: float, over: Callable[[], bool]) -> None:
    """Waits for the averager; Unavailable if it cannot be reached in time."""
    try:
      rpc.retry(self._averager.meet, patience_s, should_stop=over)
    except rpc.Unavailable:
      if not over():
        raise

  def __call__(
    self,
    number: int,
    steps: int,
    theta: np.ndarray,
    over: Callable[[], bool],
  ) -> np.ndarray | None:
    # A round ends within `timeout_s` of its first call.
    until = time.monotonic() + 2 * self._timeout_s
    try:
      while not over() and time.monotonic() < until:
        closed, mean = self._averager.average(
          self._worker, number, steps, theta
        )
        if closed:
          return mean
    except rpc.Unavailable as e:
      _logger.warning('No mean this time: %s', e)
    return None

  def leave(self) -> None:
    try:
      self._averager.leave(self._worker)
    except rpc.Unavailable:
      pass  # The averager then waits for this worker in one more round only.
