"""What an inference server says of itself: batches, requests, waits."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time

import numpy as np

_KEPT = 4096  # latest requests, of which percentiles are taken


class Figures:
  """Counts of one server since the last report, made by one thread and
  taken by another."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._lock = threading.Lock()
    self._waits = np.zeros(_KEPT)
    self._requests = 0  # since the start
    self.refused = 0
    self._clear()

  def _clear(self) -> None:
    self._since = self._clock()
    self._first = self._requests
    self._batches = self._passes = self._rows = 0
    self._pass_s = 0.0

  def answered(self, wait_s: float) -> None:
    """A request had its answer so long after it came in."""
    self._waits[self._requests % _KEPT] = wait_s
    self._requests += 1

  def batch(self, rows: int, passes: int, seconds: float) -> None:
    """A batch of so many environments took so many forward passes."""
    with self._lock:
      self._batches += 1
      self._rows += rows
      self._passes += passes
      self._pass_s += seconds

  def take(self) -> dict[str, float]:
    """The numbers since the last call, for the counter.

    mean_batch: environments in a batch. requests_per_s. passes_per_step:
    forward passes for each environment step. pass_ms: time of one batch's
    policy. wait_p99_ms: 99th percentile, of the latest requests, of the time
    from request to reply.
    """
    with self._lock:
      requests = self._requests - self._first
      numbers: dict[str, float] = {
        'refused_requests': self.refused,
        'requests_per_s': requests / max(self._clock() - self._since, 1e-9),
      }
      if self._batches:
        kept = self._waits[: min(self._requests, _KEPT)]
        if requests < len(kept):
          places = np.arange(self._first, self._requests) % _KEPT
          kept = self._waits[places]
        wait_p99_s = float(np.percentile(kept, 99)) if len(kept) else 0.0
        numbers.update(
          mean_batch=self._rows / self._batches,
          passes_per_step=self._passes / self._rows,
          pass_ms=1e3 * self._pass_s / self._batches,
          wait_p99_ms=1e3 * wait_p99_s,
        )
      self._clear()
      return numbers
