"""Clients of a parameter server's shards, for learners and evaluators.

All shards are called concurrently. With `all_shards_required` a learner waits
for an unavailable shard, so that no slice falls behind, and repeats its call
with the same ticket, in case the shard had applied the gradient before it died.
Otherwise the learner continues with the last known value of the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import functools
import logging
import time
from typing import Any
import uuid

import numpy as np

from agents import parameters
from agents.exchange import base as exchange_base
from agents.exchange import remote_apply
from launch import pulse
from launch import rpc
from launch.services import shard as shard_lib

_logger = logging.getLogger(__name__)
_DEADLINE_S = 5.0
_PAUSE_S = 0.2  # before an unavailable shard is called again
_AWAY_S = 2.0  # the same, if the learner does not wait for it
_PROBE_S = 0.2  # and for how long it is looked for then
_PATIENCE_S = 60.0  # to get the first parameters
_CONSISTENT_S = 1.0  # to read slices of one version, at most
_LEAVE_S = 1.0  # deadline of `leave`


class Shards:
  """A client of all shards, which presents them as one server."""

  def __init__(
    self,
    shards: Sequence[Any],
    places: Sequence[slice],
    learner: int = 0,
    required: bool = True,
    consistent: bool = False,
    deadline_s: float = _DEADLINE_S,
  ):
    """Stores its arguments; `start` fetches the first parameters.

    `shards` are clients in the order of their `places`. `required` says whether
    to wait for an unavailable one, and `consistent` whether to read slices
    again until all have one version.
    """
    self._shards = [client.with_deadline(deadline_s) for client in shards]
    self._probes = [client.with_deadline(_PROBE_S) for client in shards]
    self._places = places
    self._learner = learner
    self._required = required
    self._consistent = consistent
    self._known: list[shard_lib.Reply] = []
    self._back = [0.0] * len(self._shards)  # when to call each one again
    self._said = [False] * len(self._shards)
    self._said_mixed = False
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
    # A shard that misses this call waits for the learner once.
    rpc.together(
      [
        (client.with_deadline(_LEAVE_S), 'leave', [self._learner])
        for client in self._shards
      ]
    )

  def _all(self, method: str, arguments: Sequence[Any]) -> list[bool]:
    """Calls a method of each shard. Returns which shards accepted the call."""
    begin = time.monotonic()
    asked = [
      i
      for i in range(len(self._shards))
      if self._required or begin >= self._back[i] and self._is_there(i)
    ]
    answers = dict(
      zip(
        asked,
        rpc.together([(self._shards[i], method, arguments[i]) for i in asked]),
      )
    )
    accepted = [
      i in answers
      and self._ask(
        i,
        functools.partial(getattr(self._shards[i], method), *arguments[i]),
        answers[i],
      )
      for i in range(len(self._shards))
    ]
    self.waited_s += time.monotonic() - begin
    return accepted

  def _is_there(self, i: int) -> bool:
    """Whether a shard that was away can be called with the whole deadline."""
    if self._said[i]:
      try:
        self._probes[i].pull()
      except rpc.Unavailable as e:
        # One that got the call is there, if slow.
        if not e.delivered:
          self._back[i] = time.monotonic() + _AWAY_S
          return False
    return True

  def _ask(self, i: int, call: Callable[[], Any], answer: Any = None) -> bool:
    """Stores the reply of shard `i`; repeats the call while it is unavailable.

    `answer` is the reply or exception of the first call, if it has been made.
    """
    while True:
      if not self._required and time.monotonic() < self._back[i]:
        return False
      try:
        if isinstance(answer, Exception):
          raise answer
        reply = _reply(call() if answer is None else answer)
      except rpc.Unavailable as e:
        answer = None
        if not self._said[i]:
          what = 'Waiting for' if self._required else 'Learning without'
          _logger.warning('%s shard %d: %s', what, i, e)
        self._said[i] = True
        if self.over():
          raise exchange_base.Stopped from e
        self._back[i] = time.monotonic() + _AWAY_S
        if not self._required:
          return False
        pulse.waits(f'shard {i} is away: {e}')
        time.sleep(_PAUSE_S)
        continue
      if self._said[i]:
        _logger.warning('Shard %d is back at update %d.', i, reply.version)
        self._said[i] = False
      self._known[i] = reply
      return reply.accepted

  def _answer(self, accepted: list[bool]) -> remote_apply.Answer:
    if self._consistent:
      self._read_until_one_version()
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

  def _read_until_one_version(self) -> None:
    """Reads slices of older versions again until all have the same one."""
    until = time.monotonic() + _CONSISTENT_S
    while time.monotonic() < until and not self.over():
      versions = [reply.version for reply in self._known]
      if len(set(versions)) == 1:
        return
      for i, version in enumerate(versions):
        if version < max(versions) and (self._required or self._is_there(i)):
          self._ask(i, self._shards[i].pull)
    if not self._said_mixed and not self.over():
      self._said_mixed = True
      _logger.warning(
        'Shards are of versions %s after %.0f s of reading. If one was started '
        'again, or has rejected a gradient, they stay so, and each update '
        'waits as long: leave server.consistent_pull out.',
        [reply.version for reply in self._known],
        _CONSISTENT_S,
      )


class ServerExchange(remote_apply.RemoteApply):
  """An exchange that leaves the update to a parameter server's shards."""

  def __init__(
    self,
    config: Any,
    places: Sequence[slice],
    learner: int,
    shards: list[Any],
    budget: int | None = None,
  ):
    """`config` is parameter_server.Config; for other arguments see `Shards`.

    `budget` is the environment steps of all learners, None if unknown.
    """
    loss_filter = None
    if config.outlier_sigmas is not None:
      loss_filter = remote_apply.LossFilter(
        config.outlier_sigmas, config.outlier_decay, config.outlier_warmup
      )
    # A synchronous shard answers once it has all learners' gradients.
    wait_s = config.sync_timeout_s if config.synchronous else 0.0
    self._shards = Shards(
      shards,
      places,
      learner,
      config.all_shards_required,
      config.consistent_pull,
      _DEADLINE_S + wait_s,
    )
    super().__init__(self._shards, loss_filter, budget)

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

  def ended(self):
    self._shards.leave()

  def metrics(self):
    return {
      **super().metrics(),
      'mixed_pulls': self._shards.mixed,
      'server_waited_s': self._shards.waited_s,
    }


class Reader:
  """Serves an evaluator the joined parameters of all shards."""

  def __init__(self, shards: Sequence[Any], layout: parameters.Layout):
    self._shards = shards
    self._layout = layout

  def get_parameters(self, have_version: int) -> dict[str, Any]:
    """See `variables.Published.get`; the version is of the oldest slice."""
    replies = [_reply(client.pull()) for client in self._shards]
    version = min(reply.version for reply in replies)
    if version == have_version:
      return {'version': version, 'theta': None}
    theta = parameters.encode(self._layout, version, _join(replies))
    return {'version': version, 'theta': theta}


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
