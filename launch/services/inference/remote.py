"""An actor's policy and parameters, where both are on an inference server."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import os
import time
from typing import Any, TypeVar

import numpy as np

from launch import rpc
from launch.services.inference import frames
from launch.services.inference import sessions
from launch.services.inference import transport as transport_lib
from launch.services.inference import waiting

_logger = logging.getLogger(__name__)
# How long a server may be away, or there and silent; likewise a table
# (experience.py). It may itself wait for a learner that is started again.
PATIENCE_S = 300.0
_PROBE_S = 2.0  # for a server to say how it is
_WAIT_S = 1.0  # for newer parameters, in one call
_NONE = np.zeros(0, np.float32)
_T = TypeVar('_T')


class RunLost(RuntimeError):
  """The server has forgotten this actor: its episodes have to begin anew."""


class RemotePolicy:
  """Acts for K environments as a `base.Actor`; follows as a `Follower`.

  Attributes:
    theta: nothing; the parameters stay where they are.
    version: of those that chose the last actions.
    age_s: of those, as in `variables.Follower`.
    behaviour, core: see `unrolls.UnrollActor`; until the next `act`.
  """

  def __init__(
    self,
    server: Any,
    shapes: frames.FrameLayout,
    index: int,
    seed: int,
    transport: str = 'auto',
    should_stop: Callable[[], bool] = lambda: False,
    patience_s: float = PATIENCE_S,
  ):
    """Makes one that is not connected; `start` waits for the server.

    Args:
      server: client of `services.inference.Server`.
      shapes: of the frames; those of the server.
      index: rank of the actor.
      seed: of its exploration. With one of its own, an actor acts as with
        `np.random.default_rng(seed)`.
      transport: 'shared_memory', 'rpc', or 'auto': by where the server is.
      should_stop: ends a wait.
      patience_s: how long one may last.
    """
    self._server = server
    self._shapes = shapes
    self._index = index
    self._seed = seed
    self._transport = transport
    self._should_stop = should_stop
    self._patience_s = patience_s
    self._link: transport_lib.Link | None = None
    self._frame = frames.Frame(shapes)
    self._ended: np.ndarray | None = None
    self._uniform = False
    self._runs = 0
    self._step = -1
    self.theta = _NONE
    self.version = -1

  @property
  def age_s(self) -> float:
    return self._frame.age_s

  @property
  def behaviour(self) -> np.ndarray:
    return self._frame.behaviour

  @property
  def core(self) -> np.ndarray:
    return self._frame.core

  @property
  def shares_memory(self) -> bool:
    """Whether frames go through memory, or over RPC."""
    return isinstance(self._link, transport_lib.SharedMemoryLink)

  # As variables.Follower.

  def start(self) -> None:
    """Waits for the server, and begins a run there.

    Raises:
      rpc.Unavailable: it did not come within `patience_s`.
      RunLost: the program stops.
      transport_lib.Refused: it will not serve this actor.
      ValueError: it is on another host, but memory was to be shared.
    """
    self._link = self._retry(self._connect)
    self._frame = self._link.frame
    self._step = -1
    self._ended = None

  def fetch(self) -> bool:
    """False: the server sees to it."""
    return False

  def fetch_newer(self, timeout_s: float) -> bool:
    """Waits until the server has others than chose the last actions."""
    until = time.monotonic() + timeout_s
    while not self._should_stop() and (left := until - time.monotonic()) > 0:
      try:
        if self._server.newer_than(self.version, min(left, _WAIT_S)):
          return True
      except (rpc.Unavailable, rpc.RemoteError):
        time.sleep(0.1)
    return False

  # As base.Actor and unrolls.UnrollActor.

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions of the server's policy.

    Raises:
      RunLost: the server was started again, and this actor has a new run on
        it; or the program stops. Episodes have to begin anew.
      transport_lib.Refused: this request has no answer.
      waiting.NoAnswer: there was none within `patience_s`.
    """
    del theta, rng
    assert self._link is not None, 'call start() first'
    self._step += 1
    self._frame.ask(self._step, actor_steps, self._ended, observation)
    self._ended = None
    self._exchange()
    frame = self._frame
    if frame.refusal is not None:
      raise transport_lib.Refused(frame.refusal)
    self.version = frame.version
    # The next answer is written in the same place.
    return frame.action.copy()

  def ended(self, last: np.ndarray) -> None:
    self._ended = np.array(last, np.bool_)

  def priorities(self, theta, packed) -> np.ndarray | None:
    """First priorities [M], computed by the server.

    Raises:
      RunLost: the program stops.
    """
    del theta
    if self._uniform:
      return None
    found = self._retry(lambda: self._server.priorities(packed))
    # An agent that has none never has: it is asked once.
    self._uniform = found is None
    return found

  def close(self) -> None:
    """Leaves the server."""
    if self._link is not None:
      self._link.close()

  def _exchange(self) -> None:
    assert self._link is not None
    wait: waiting.Wait | None = None
    while True:
      try:
        self._link.exchange(self._step)
        return
      except transport_lib.Late as e:
        if self._should_stop():
          raise RunLost('The program stops.') from e
        # `exchange` has already waited for a second.
        wait = wait or waiting.Wait(self._patience_s)
        wait.go_on(self._why_silent)
      except transport_lib.Lost as e:
        self._link.close()
        if not self._should_stop():
          _logger.warning(
            '%s All episodes begin anew when it is back; open windows and '
            'unrolls are dropped.',
            e,
          )
        self.start()
        raise RunLost('The inference server was started again.') from e

  def _why_silent(self) -> str:
    """How the server is that leaves a request without an answer."""
    who = f'The inference server at {self._server.address}'
    try:
      where = self._server.with_deadline(_PROBE_S).where()
    except (rpc.Unavailable, rpc.RemoteError) as e:
      return (
        f'{who} has not answered request {self._step}, nor a call ({e}). Its '
        'process is stopped or gone, or its machine is overloaded: let it go '
        'on, or kill it, and it is started again.'
      )
    if where['held']:
      return (
        f'{who} waits for the learner: its parameters are '
        f'{where["parameters_age_s"]:.0f} s old, which is more than '
        'actors.max_param_age_s. See why the learner does not answer.'
      )
    return (
      f'{who} answers calls, but not request {self._step}: see its log, or '
      'kill it, and it is started again.'
    )

  def _retry(self, call: Callable[[], _T]) -> _T:
    """Calls until the server is there.

    Raises:
      rpc.Unavailable: it was not within `patience_s`.
      RunLost: the program stops.
    """
    wait = waiting.Wait(self._patience_s)

    def attempt() -> _T:
      try:
        return call()
      except rpc.Unavailable as e:
        why = str(e)
        wait.say(lambda: f'The inference server is not there: {why}.')
        raise

    try:
      return rpc.retry(attempt, self._patience_s, should_stop=self._should_stop)
    except rpc.Unavailable as e:
      if self._should_stop():
        raise RunLost('The program stops.') from e
      raise

  def _connect(self) -> transport_lib.Link:
    """One attempt; Unavailable where another may help."""
    where = self._server.where()
    if not where['ready']:
      raise self._unavailable('it has no parameters yet')
    same = where['host'] == transport_lib.host()
    if self._transport == 'shared_memory' and not same:
      raise ValueError(
        "actors.inference_transport='shared_memory', but the inference server "
        f'at {self._server.address} is on another host. Set it to auto.'
      )
    run_id = int.from_bytes(os.urandom(7), 'little')
    hello = dataclasses.asdict(
      sessions.Hello(
        self._index,
        run_id,
        # A later run must not draw the numbers of the first again.
        [self._seed, self._runs] if self._runs else self._seed,
        self._shapes.fingerprint,
      )
    )
    try:
      if self._transport == 'rpc' or not same:
        link: transport_lib.Link = transport_lib.RpcLink(
          self._server, hello, self._shapes
        )
      else:
        link = transport_lib.SharedMemoryLink(
          where['socket'], hello, self._shapes
        )
    except transport_lib.Lost as e:
      raise self._unavailable(str(e)) from e
    self._runs += 1
    return link

  def _unavailable(self, why: str) -> rpc.Unavailable:
    return rpc.Unavailable(self._server.address, 'where', True, why)
