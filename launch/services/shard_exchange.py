"""A learner's exchange with the shards of a parameter server.

All shards are called concurrently. A learner waits for an unavailable shard, so
that no slice falls behind, and repeats its call with the same ticket, in case
the shard had applied the gradient before it died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import logging
import time
from typing import Any
import uuid

import numpy as np

from murmuration.agents.exchange import base as exchange_base
from murmuration.agents.exchange import remote_apply
from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.services import shard as shard_lib

_logger = logging.getLogger(__name__)
_DEADLINE_S = 5.0
_PAUSE_S = 0.2  # before an unavailable shard is called again
_PATIENCE_S = 60.0  # to get the first parameters
_LEAVE_S = 1.0  # deadline of `leave`


class Shards:
  """A client of all shards, which presents them as one server."""

  def __init__(
    self, shards: Sequence[Any], places: Sequence[slice], learner: int = 0
  ):
    """Stores its arguments; `start` fetches the first parameters.

    `shards` are clients in the order of their `places`.
    """
    self._shards = [client.with_deadline(_DEADLINE_S) for client in shards]
    self._places = places
    self._learner = learner
    self._known: list[shard_lib.Reply] = []
    self._run = uuid.uuid4().hex  # prefix of tickets; differs after a restart
    self._count = 0
    self.waited_s = 0.0  # time spent in calls
    self.mixed = 0  # answers whose slices had different versions
    self.over: Callable[[], bool] = lambda: False  # ends waits for a shard

  def start(self, should_stop: Callable[[], bool] | None = None) -> np.ndarray:
    """Fetches the first parameters, float32 [D]; waits a minute at most."""
    self._known = [
      _reply(rpc.retry(client.pull, _PATIENCE_S, should_stop=should_stop))
      for client in self._shards
    ]
    return _join(self._known)

  def pull(self) -> remote_apply.Answer:
    """The newest parameters."""
    return self._answer(self._all('pull', [()] * len(self._shards)))

  def push(self, message: remote_apply.Message) -> remote_apply.Answer:
    """Sends each shard its part of a message. Returns the new parameters."""
    self._count += 1
    ticket = f'{self._run}-{self._count}'
    arguments = [
      (
        self._learner,
        ticket,
        known.version,
        None if message.vector is None else message.vector[place],
        tuple(_within(message.statistics, place)),
        message.steps,
        known.life,
      )
      for known, place in zip(self._known, self._places)
    ]
    return self._answer(self._all('push', arguments))

  def leave(self) -> None:
    """Tells the shards that this learner has finished."""
    rpc.together(
      [
        (client.with_deadline(_LEAVE_S), 'leave', [self._learner])
        for client in self._shards
      ]
    )

  def _all(self, method: str, arguments: Sequence[Any]) -> list[bool]:
    """Calls a method of each shard. Returns which shards accepted the call."""
    begin = time.monotonic()
    calls = [
      (client, method, own) for client, own in zip(self._shards, arguments)
    ]
    accepted = [
      self._keep(i, answer, calls[i])
      for i, answer in enumerate(rpc.together(calls))
    ]
    self.waited_s += time.monotonic() - begin
    return accepted

  def _keep(self, i: int, answer: Any, call: Any) -> bool:
    """Stores the answer of shard `i` to a call, made until there is one."""
    away = False
    while isinstance(answer, rpc.Unavailable):
      if not away:
        _logger.warning('Waiting for shard %d: %s', i, answer)
      away = True
      if self.over():
        raise exchange_base.Stopped from answer
      pulse.waits(f'shard {i} is away: {answer}')
      time.sleep(_PAUSE_S)
      (answer,) = rpc.together([call])
    if isinstance(answer, Exception):
      raise answer
    self._known[i] = reply = _reply(answer)
    if away:
      _logger.warning('Shard %d is back at update %d.', i, reply.version)
    return reply.accepted

  def _answer(self, accepted: list[bool]) -> remote_apply.Answer:
    versions = {reply.version for reply in self._known}
    self.mixed += len(versions) > 1
    sizes = [place.stop - place.start for place in self._places]
    taken = sum(size for size, yes in zip(sizes, accepted) if yes)
    return remote_apply.Answer(
      _join(self._known),
      min(versions),
      max(reply.steps for reply in self._known),
      min(reply.scheduled for reply in self._known),
      taken / sum(sizes),
    )


class ServerExchange(remote_apply.RemoteApply):
  """An exchange that leaves the update to a parameter server's shards."""

  def __init__(
    self,
    config: Any,
    places: Sequence[slice],
    learner: int,
    shards: list[Any],
  ):
    """`config` is parameter_server.Config; for other arguments see `Shards`."""
    loss_filter = None
    if config.outlier_sigmas is not None:
      loss_filter = remote_apply.LossFilter(config.outlier_sigmas)
    self._shards = Shards(shards, places, learner)
    self._ended = False
    super().__init__(self._shards, loss_filter)

  def initial(self, theta, again):
    del again
    own = self._shards.start(self.should_stop)
    return np.broadcast_to(own, theta.shape)

  def begin(self, worker):
    self._shards.over = worker.over
    super().begin(worker)

  def replacement(self, member):
    """The shards' parameters, once their checkpoints are taken up again."""
    del member
    while not self._shards.over():
      with contextlib.suppress(exchange_base.Stopped):
        theta = self._shards.pull().theta
        if np.isfinite(theta).all():
          return theta
      pulse.waits('parameters of the shards are not finite')
      time.sleep(_PAUSE_S)
    return None

  def sync(self):
    # The other learners may go on: the evaluator plays what learner 0 serves.
    if not self._ended or self._shards.over():
      return False
    with contextlib.suppress(exchange_base.Stopped):
      theta = self._shards.pull().theta
      if np.isfinite(theta).all():
        assert self._worker is not None
        self._worker.learner.set_parameters(theta[None])
        return True
    return False

  def ended(self):
    self._ended = True
    self._shards.leave()

  def metrics(self):
    return {
      **super().metrics(),
      'mixed_pulls': self._shards.mixed,
      'server_waited_s': self._shards.waited_s,
    }


def _join(replies: Sequence[shard_lib.Reply]) -> np.ndarray:
  parts = [reply.theta for reply in replies]
  return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _reply(answer: Any) -> shard_lib.Reply:
  # RPC returns a NamedTuple of the same fields, but of another class.
  return shard_lib.Reply(*answer)


def _within(statistics: dict[int, np.ndarray], place: slice):
  """Yields the part of each statistic in a slice: (start in it, values)."""
  for start, values in statistics.items():
    low, high = max(start, place.start), min(start + len(values), place.stop)
    if low < high:
      yield low - place.start, values[low - start : high - start]
