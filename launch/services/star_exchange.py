"""The exchange of an explorer node: offers candidates, is pulled to theta_star.

A background thread calls the star server, so a slow or dead server does not
delay the explorers: they learn without the pull (c = 0) until it answers again.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import threading
import time
from typing import Any

import numpy as np

from murmuration.agents import parameters
from murmuration.agents.exchange import pull
from murmuration.agents.swarm import explorers
from murmuration.launch import rpc

_logger = logging.getLogger(__name__)
_BACKOFF_FIRST_S = 0.1
_BACKOFF_CAP_S = 5.0


@dataclasses.dataclass(frozen=True)
class Star:
  """The star server's last answer."""

  version: int = 0  # of theta_star; 0 before the first one
  theta: np.ndarray | None = None  # float32 [D]; None before the first one
  c: float = 0.0  # weight of the pull; 0 while there is none
  r_star: float = float('-inf')  # mean return of theta_star
  bar: float = float('-inf')  # a candidate with a higher claim is kept
  reachable: bool = True  # whether the last call succeeded


class StarClient:
  """Polls theta_star and offers candidates in its own thread.

  Attributes:
    star: the server's last answer.
    fault: the error that ended the thread, if one did.
  """

  def __init__(self, server: Any, layout: parameters.Layout):
    """Stores its arguments; `server` is a client of a `star.Star`."""
    self._server = server
    self._layout = layout
    self.star = Star()
    self.fault: Exception | None = None
    self._offer: tuple[np.ndarray, float, int, int] | None = None
    self._lock = threading.Lock()
    self._wake = threading.Event()
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='star-client', daemon=True
    )

  def start(self, should_stop: Callable[[], bool] | None = None) -> Star:
    """Fetches theta_star.

    Raises:
      rpc.Unavailable: the server cannot be reached within a minute, or
        should_stop() became true.
    """
    rpc.retry(self._poll, should_stop=should_stop)
    self._thread.start()
    return self.star

  def poll(self) -> None:
    """Makes the thread ask for a newer theta_star. Returns immediately."""
    self._wake.set()

  def offer(
    self, theta: np.ndarray, claim: float, explorer: int, learner_step: int
  ) -> None:
    """Offers `theta [D]`. Of several unsent ones only the best is sent."""
    with self._lock:
      if self._offer is not None and self._offer[1] >= claim:
        return
      self._offer = (np.array(theta), claim, explorer, learner_step)
    self._wake.set()

  def close(self) -> None:
    self._closed.set()
    self._wake.set()
    if self._thread.is_alive():
      self._thread.join(timeout=2.0)

  def _run(self) -> None:
    try:
      self._talk()
    except Exception as e:  # raised in the worker's own loop
      self.fault = e

  def _talk(self) -> None:
    backoff_s = _BACKOFF_FIRST_S
    while not self._closed.is_set():
      self._wake.wait()
      self._wake.clear()
      if self._closed.is_set():
        return
      try:
        self._send_offer()
        self._poll()
        backoff_s = _BACKOFF_FIRST_S
      except (rpc.Unavailable, rpc.RemoteError) as e:
        if self.star.reachable:
          _logger.warning('Learning alone, no pull: %s', e)
        self.star = dataclasses.replace(self.star, c=0.0, reachable=False)
        self._closed.wait(backoff_s)
        backoff_s = min(2 * backoff_s, _BACKOFF_CAP_S)

  def _send_offer(self) -> None:
    with self._lock:
      offer, self._offer = self._offer, None
    if offer is None:
      return
    theta, claim, explorer, learner_step = offer
    data = parameters.encode(self._layout, learner_step, theta)
    try:
      self._server.offer(data, claim, explorer, learner_step)
    except rpc.Unavailable:
      # The server may have it already; a second trial does no harm.
      with self._lock:
        if self._offer is None or self._offer[1] < claim:
          self._offer = offer
      raise

  def _poll(self) -> None:
    known = self.star
    answer = self._server.get_star(known.version)
    theta = known.theta
    if answer['theta'] is not None:
      _, theta = parameters.decode(self._layout, answer['theta'])
    if not known.reachable:
      _logger.warning('The star server is back (%s).', time.ctime())
    self.star = Star(
      version=int(answer['version']),
      theta=theta,
      c=float(answer['c']),
      r_star=float(answer['r_star']),
      bar=float(answer['bar']),
    )


class StarExchange(pull.Pull):
  """The update of Liu et al. 2018: the gradient and a pull to theta_star.

  A node restarted within a run gives all of its members theta_star. If there is
  none yet, they go on from the node's checkpoint. A node that starts for the
  first time keeps its own parameters.
  """

  keeps_learner = False

  def __init__(
    self,
    config: explorers.Config,
    layout: parameters.Layout,
    num_members: int,
    updates_per_rollout: int,
    server: Any,
  ):
    """Makes an exchange; it calls the star server from `initial` on.

    `num_members` is P, the explorers in this node. `updates_per_rollout` are
    the learner steps between two pulls if `config.pull_every` is 'rollout'.
    """
    period = updates_per_rollout if config.pull_every == 'rollout' else 1
    super().__init__(config.c_max, period)
    self.shared_start = config.start == 'shared'
    self._config = config
    self._client = StarClient(server, layout)
    self._returns = explorers.Claims(num_members, config.claim_episodes)
    self._version = 0
    self._weights = np.zeros(num_members, np.float32)
    self._next_poll = 0

  def initial(self, theta, again):
    star = self._client.start(self.should_stop)
    self.keeps_learner = star.theta is None
    if star.theta is None or not again:
      return theta
    _logger.info('Starting from version %d of theta_star.', star.version)
    return np.repeat(star.theta[None], len(theta), axis=0)

  def begin(self, worker):
    self._worker = worker

  def episode_ended(self, done):
    claim = self._returns.finished(done.index, done.episode_return)
    if claim is not None:
      self._offer(done.index, claim)

  def sync(self):
    if self._client.fault is not None:
      raise self._client.fault
    if self._worker.steps >= self._next_poll:
      self._next_poll = self._worker.steps + self._config.star_poll_steps
      self._client.poll()
    star = self._client.star
    weights = explorers.pull_weights(star.c, star.r_star, self._returns.means)
    newer = star.version != self._version
    if newer or not np.array_equal(weights, self._weights):
      self.set_star(star.theta if newer else None, weights)
      self._version, self._weights = star.version, weights

  def replacement(self, member):
    return self._client.star.theta

  def reset_member(self, member):
    super().reset_member(member)
    # Its earlier claims may exceed all that the new parameters can reach.
    self._returns.forget(member)

  def metrics(self):
    theta, star = self._worker.theta, self._client.star
    numbers = {
      'star_version': star.version,
      'star_reachable': float(star.reachable),
      'pulled_fraction': float(np.mean(self._weights > 0)),
      'spread': float(
        np.linalg.norm(theta - theta.mean(axis=0), axis=1).mean()
      ),
    }
    if star.theta is not None:
      numbers['star_distance'] = float(
        np.linalg.norm(theta - star.theta, axis=1).mean()
      )
    return numbers

  def close(self):
    self._client.close()

  def _offer(self, member: int, claim: float) -> None:
    worker = self._worker
    learned = worker.learner.updates >= self._config.offer_after_updates
    if learned and claim > self._client.star.bar:
      index = worker.members[member].index
      self._client.offer(
        worker.theta[member], claim, index, worker.learner.updates
      )
