"""An actor's client of the inference server, in place of its own policy."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import os
import time
from typing import Any, TypeVar

import numpy as np

from launch import pulse
from launch import rpc
from launch.services.inference import frames
from launch.services.inference import sessions
from launch.services.inference import transport as transport_lib

_logger = logging.getLogger(__name__)
_PROBE_S = 2.0  # deadline of `where`
SAY_S = 15.0  # of a wait before the first warning; doubles with each one
_TELL_S = 2.0  # of a wait before the launcher is told
_WAIT_S = 1.0  # for newer parameters, in one call
_NONE = np.zeros(0, np.float32)
_T = TypeVar('_T')


class RunLost(RuntimeError):
  """The server has lost this actor's state: its episodes must begin anew."""


class NoAnswer(TimeoutError):
  """The inference server has not answered a request for too long."""


class RemotePolicy:
  """Acts for K environments; a `base.Actor` and a `variables.Follower` in one.

  Attributes:
    theta: empty; the parameters stay on the server.
    version: of the parameters that chose the last actions.
    age_s: of these parameters, see `variables.Follower`.
    behaviour, core: see `unrolls.UnrollActor`; valid until the next `act`.
  """

  def __init__(
    self,
    server: Any,
    shapes: frames.FrameLayout,
    index: int,
    seed: int,
    transport: str = 'auto',
    should_stop: Callable[[], bool] = lambda: False,
    patience_s: float = pulse.WAIT_S,
  ):
    """Stores its arguments; `start` connects.

    `server` is a client of an inference server, and `shapes` are equal to the
    server's. Exploration is by `np.random.default_rng(seed)`. `transport` is
    'shared_memory', 'rpc', or 'auto': memory on the same host. A wait ends with
    `should_stop`, or after `patience_s`.
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

  # The interface of variables.Follower.

  def start(self) -> None:
    """Waits for the server and begins a run there.

    Raises:
      rpc.Unavailable: the server did not come up within `patience_s`.
      RunLost: the program stops.
      transport_lib.Refused: the server refuses this actor.
      ValueError: transport is 'shared_memory', but the server is on another
        host.
    """
    self._link = self._retry(self._connect)
    self._frame = self._link.frame
    self._step = -1
    self._ended = None

  def fetch(self) -> bool:
    """Returns False: the server fetches the parameters."""
    return False

  def fetch_newer(self, timeout_s: float) -> bool:
    """Waits until the server's parameters differ from those last acted with."""
    until = time.monotonic() + timeout_s
    while not self._should_stop() and (left := until - time.monotonic()) > 0:
      try:
        if self._server.newer_than(self.version, min(left, _WAIT_S)):
          return True
      except (rpc.Unavailable, rpc.RemoteError):
        time.sleep(0.1)
    return False

  # The interface of base.Actor and unrolls.UnrollActor.

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [K, ...] of the server's policy.

    Raises:
      RunLost: the server was restarted and this actor has a new run there, so
        that its episodes must begin anew; or the program stops.
      transport_lib.Refused: the server has no actions for this request.
      NoAnswer: there was no answer within `patience_s`.
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
    # A copy, since the next answer overwrites the frame.
    return frame.action.copy()

  def ended(self, last: np.ndarray) -> None:
    self._ended = np.array(last, np.bool_)

  def priorities(self, theta, packed) -> np.ndarray | None:
    """First priorities [M], from the server; RunLost if the program stops."""
    del theta
    if self._uniform:
      return None
    found = self._retry(lambda: self._server.priorities(packed))
    # An agent without priorities never has any: ask only once.
    self._uniform = found is None
    return found

  def close(self) -> None:
    """Disconnects."""
    if self._link is not None:
      self._link.close()

  def _exchange(self) -> None:
    assert self._link is not None
    wait: Wait | None = None
    while True:
      try:
        self._link.exchange(self._step)
        return
      except transport_lib.Late as e:
        if self._should_stop():
          raise RunLost('The program stops.') from e
        # No pause is needed: `exchange` has waited for a second.
        wait = wait or Wait(self._patience_s)
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
    """Finds out why the server does not answer a request, for the log."""
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
    """Repeats a call until the server answers, at most for `patience_s`."""
    try:
      return rpc.retry(call, self._patience_s, should_stop=self._should_stop)
    except rpc.Unavailable as e:
      if self._should_stop():
        raise RunLost('The program stops.') from e
      raise

  def _connect(self) -> transport_lib.Link:
    """Tries to connect; raises Unavailable if another attempt may succeed."""
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
        # A later run must not repeat the random numbers of the first.
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


class Wait:
  """A wait of at most `patience_s`, which starts with this object."""

  def __init__(
    self, patience_s: float, clock: Callable[[], float] = time.monotonic
  ):
    self._patience_s = patience_s
    self._clock = clock
    self._since = clock()
    self._say_after_s = SAY_S
    self._why = ''  # last result of the argument `why`

  def go_on(self, why: Callable[[], str]) -> None:
    """Reports the reason for the wait, if due; NoAnswer after `patience_s`."""
    waited_s = self._clock() - self._since
    if waited_s >= self._patience_s:
      raise NoAnswer(f'Gave up after {waited_s:.0f} s. {why()}')
    due = waited_s >= self._say_after_s
    if not due and waited_s < _TELL_S:
      return
    if due or not self._why:
      self._why = why()  # This may call the server, which takes time.
    pulse.waits(self._why)
    if due:
      self._say_after_s *= 2
      _logger.warning(
        'Still waiting, for %.0f s so far. %s', waited_s, self._why
      )
