"""Parameters on their way from a learner to actors: what is newer than mine?"""

from __future__ import annotations

from collections.abc import Callable
import logging
import threading
import time
from typing import Any

import numpy as np

from murmuration.agents import parameters
from murmuration.launch import pulse
from murmuration.launch import rpc

_logger = logging.getLogger(__name__)
_DEADLINE_S = 2.0  # until an answer begins
_BACKOFF_CAP_S = 5.0
_POLL_S = 0.002


class Published:
  """What a learner serves: the newest `theta [D]` and its version.

  The version is the number of learner steps that made it.

  Attributes:
    sent_bytes: of theta, to all who asked.
  """

  def __init__(self, layout: parameters.Layout):
    self._layout = layout
    self._lock = threading.Lock()
    self._version = -1
    self._theta: np.ndarray | None = None
    self._encoded: bytes | None = None
    self._last = False
    self.sent_bytes = 0

  def publish(self, version: int, theta: np.ndarray) -> None:
    """Makes `theta [D]` the newest; NaN is never served."""
    if not np.isfinite(theta).all():
      return
    with self._lock:
      self._version, self._theta, self._encoded = version, theta, None

  def end(self) -> None:
    """Says that the newest parameters are the last."""
    self._last = True

  def get(self, have_version: int) -> dict[str, Any]:
    """What is newest, for one who has `have_version`.

    Returns:
      {'version', 'theta', 'last'}: theta encoded, or None if `have_version` is
      it or there is none yet; last, whether no newer ones will come.
    """
    with self._lock:
      answer = {'version': self._version, 'theta': None, 'last': self._last}
      if self._theta is None or self._version == have_version:
        return answer
      if self._encoded is None:
        # Many actors ask for the same version: it is encoded once.
        self._encoded = parameters.encode(
          self._layout, self._version, self._theta
        )
      self.sent_bytes += len(self._encoded)
      return {**answer, 'theta': self._encoded}


class Follower:
  """An actor's copy of the parameters.

  A learner that is away does not stop the actor: it goes on with what it has,
  for at most `max_age_s`; then it waits.
  """

  def __init__(
    self,
    learner: Any,
    layout: parameters.Layout,
    max_age_s: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Makes a follower that has nothing yet; `start` waits for the first.

    `learner` is a client of what serves `get_parameters(have_version)`. Acting
    waits for a newer copy than one of `max_age_s`.
    """
    self._learner = learner.with_deadline(_DEADLINE_S)
    self._layout = layout
    self._max_age_s = max_age_s
    self._should_stop = should_stop
    self._clock = clock
    self._heard = clock()
    self._next = -np.inf
    self._backoff_s = 0.0
    self.version = -1
    self.theta = np.zeros(layout.size, np.float32)

  @property
  def age_s(self) -> float:
    """Seconds since the learner last said what is newest."""
    return self._clock() - self._heard

  def start(self) -> None:
    """Waits for the first parameters; Unavailable after five minutes."""

    def first():
      self._ask()
      if self.version < 0:
        raise rpc.Unavailable(
          self._learner.address,
          'get_parameters',
          True,
          'the learner has no parameters yet',
        )

    rpc.retry(first, pulse.WAIT_S, should_stop=self._should_stop)

  def fetch(self) -> bool:
    """Takes newer parameters if there are some. Returns whether there were.

    Unavailable if the copy is too old and the learner did not come back.
    """
    age_s = self.age_s
    too_old = age_s > self._max_age_s
    if not too_old and self._clock() < self._next:
      return False
    try:
      # One that is too old may be so as nobody asked, in a long rollout.
      return self._ask()
    except (rpc.Unavailable, rpc.RemoteError) as e:
      if too_old:
        _logger.warning(
          'The parameters are %.0f s old: waiting for the learner.', age_s
        )
        return rpc.retry(self._ask, pulse.WAIT_S, should_stop=self._should_stop)
      if not self._backoff_s:
        _logger.warning('Acting on with older parameters: %s', e)
      self._backoff_s = min(max(2 * self._backoff_s, 0.2), _BACKOFF_CAP_S)
      self._next = self._clock() + self._backoff_s
      return False

  def fetch_newer(self, timeout_s: float) -> bool:
    """Waits for other parameters than these; False if there were none."""
    until = self._clock() + timeout_s
    while not self._should_stop() and self._clock() < until:
      if self.fetch():
        return True
      time.sleep(_POLL_S)
    return False

  def _ask(self) -> bool:
    answer = self._learner.get_parameters(self.version)
    self._heard, self._backoff_s = self._clock(), 0.0
    if answer['theta'] is None:
      return False
    _, self.theta = parameters.decode(self._layout, answer['theta'])
    self.version = int(answer['version'])
    return True
