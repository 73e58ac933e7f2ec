"""Metrics of an inference server: batches, requests, waiting times."""

from __future__ import annotations

import collections
from collections.abc import Callable
import threading
import time

import numpy as np

_KEPT = 4096  # latest requests, for percentiles


class Figures:
  """Counts since the last report. One thread counts, another takes them."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    self._clock = clock
    self._lock = threading.Lock()
    self._waits: collections.deque[float] = collections.deque(maxlen=_KEPT)
    self.refused = 0
    self._clear()

  def _clear(self) -> None:
    self._since = self._clock()
    self._waits.clear()
    self._requests = self._batches = self._passes = self._rows = 0
    self._pass_s = 0.0

  def answered(self, wait_s: float) -> None:
    """Counts a request that was answered `wait_s` after its arrival."""
    with self._lock:
      self._waits.append(wait_s)
      self._requests += 1

  def batch(self, rows: int, passes: int, seconds: float) -> None:
    """Counts a batch of `rows` environments."""
    with self._lock:
      self._batches += 1
      self._rows += rows
      self._passes += passes
      self._pass_s += seconds

  def take(self) -> dict[str, float]:
    """The metrics since the last call.

    Returns:
      'mean_batch': environments in a batch.
      'passes_per_step': forward passes for each environment step.
      'pass_ms': time of the policy for one batch.
      'wait_p99_ms': 99th percentile of the time from request to reply.
      'requests_per_s', and 'refused_requests' since the start.
    """
    with self._lock:
      numbers: dict[str, float] = {
        'refused_requests': self.refused,
        'requests_per_s': self._requests
        / max(self._clock() - self._since, 1e-9),
      }
      if self._batches:
        wait_p99_s = float(np.percentile(self._waits or [0.0], 99))
        numbers.update(
          mean_batch=self._rows / self._batches,
          passes_per_step=self._passes / self._rows,
          pass_ms=1e3 * self._pass_s / self._batches,
          wait_p99_ms=1e3 * wait_p99_s,
        )
      self._clear()
      return numbers
