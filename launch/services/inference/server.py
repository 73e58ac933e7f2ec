"""The inference server: one policy for all actors.

See docs/topologies/central_inference.md. One thread handles all requests: it
forms batches, runs the policy and answers. A second thread follows the
learner's parameters and reports to the counter, so that no actor waits for
either. The server saves no state: after a restart, actors find that their run
is unknown and begin new episodes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from concurrent import futures
import contextlib
import json
import os
import select
import threading
import time
from typing import Any

import numpy as np

from agents import base
from agents import sound_acting
from launch import actor_settings
from launch import experiment as experiment_lib
from launch import pulse
from launch import reporting
from launch.services import variables
from launch.services.inference import batching
from launch.services.inference import figures
from launch.services.inference import frames
from launch.services.inference import sessions
from launch.services.inference import transport

_LOOK_S = 0.1  # between two checks whether to stop
_HELD_S = 0.01  # the same, while the parameters are too old to act with
_ASK_S = 0.5  # between two requests for newer parameters, at most
_WAITED_FOR_S = 0.002  # the same, while actors wait for them
_CALL_S = 10.0  # an RPC thread waits, at most
_GRACE_S = 1.0  # after the end, for actors to disconnect first


class Server:
  """A node that acts for all actors, many in one forward pass."""

  serves = ('where', 'join', 'act', 'priorities', 'newer_than')

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: actor_settings.Config,
    counter: Any,
    learner: Any,
  ):
    self._experiment = experiment
    self._config = config
    self._learner = learner
    self._reporter = reporting.Reporter('inference/0', counter)
    self._agent = experiment.make_agent()
    self._frames = frames.layout(experiment, config)
    self._inbox: collections.deque[Callable[[], None]] = collections.deque()
    self._ready = threading.Event()
    self._waking = threading.Lock()  # of `_wakeup`, which is closed at the end
    # Replaced as a whole, so that threads can read it without a lock.
    self._parameters = sound_acting.Parameters(-1, np.zeros(0, np.float32))
    self._newer = threading.Condition()
    self._waiting_for_newer = 0
    self._look = threading.Event()  # request parameters now
    # At least two requests before parameters are too old.
    age_s = max(config.max_param_age_s, 2 * _WAITED_FOR_S)
    self._ask_s = min(_ASK_S, age_s / 2)
    self._fault: Exception | None = None  # of the following thread

  # Served over RPC.

  def where(self) -> dict[str, Any]:
    """Address and state of the server.

    Returns:
      'ready': whether actors may connect.
      'host', 'socket': where to connect; 'socket' is '' until it is ready.
      'parameters_age_s': age of the acting parameters.
      'held': whether they are too old to act with.
    """
    ready = self._ready.is_set()
    return {
      'ready': ready,
      'host': transport.host(),
      'socket': self._listener.name if ready else '',
      'parameters_age_s': self._follower.age_s if ready else 0.0,
      'held': ready and self._too_old(),
    }

  def join(self, hello: dict[str, Any]) -> str | None:
    """Begins an actor's run over RPC. Returns None, or a reason to refuse."""
    return self._in_loop(
      lambda call: call.set_result(self._admit(sessions.Hello(**hello), None)),
      _CALL_S,
    )

  def act(self, index: int, run_id: int, request: bytes) -> bytes:
    """Answers the bytes of a request with those of the reply.

    Raises:
      transport.UnknownRun: the actor has to `join` first.
      transport.Late: no answer within a second.
      ValueError: the request has a wrong size.
    """
    # No longer than the actor waits before it repeats the call: otherwise its
    # repeated calls would block the RPC threads that `where` needs.
    return self._in_loop(
      lambda call: self._ask_by(call, index, run_id, request), transport.TRY_S
    )

  def priorities(self, packed: np.ndarray) -> np.ndarray | None:
    """First priorities [M] of packed transitions [M, W]; None for all equal."""
    # Longer than the caller waits, which then calls again.
    self._ready.wait(2 * _CALL_S)
    return self._judge.priorities(self._parameters.theta, packed)

  def newer_than(self, version: int, timeout_s: float) -> bool:
    """Waits for parameters other than `version`. Returns whether they came."""
    if not self._ready.wait(min(timeout_s, _CALL_S)):
      return False
    with self._newer:
      self._waiting_for_newer += 1
      self._look.set()
      try:
        return self._newer.wait_for(
          lambda: self._parameters.version != version, min(timeout_s, _CALL_S)
        )
      finally:
        self._waiting_for_newer -= 1

  def run(self, stop: threading.Event | None = None) -> None:
    """Serves until told to stop."""
    self._stop = stop = pulse.stop_event(stop)
    with contextlib.ExitStack() as stack:
      self._build(stack)
      threading.Thread(target=self._follow, daemon=True).start()
      self._ready.set()
      pulse.worked()
      self._loop()

  def _build(self, stack: contextlib.ExitStack) -> None:
    config = self._config
    self._follower = variables.Follower(
      self._learner,
      self._agent.layout,
      config.max_param_age_s,
      should_stop=self._stop.is_set,
    )
    self._follower.start()
    self._parameters = self._newest()
    num_envs = config.envs_per_actor
    self._policy = sound_acting.Policy(self._agent, num_envs)
    self._judge = self._agent.actor(self._info(0), num_envs)
    most = config.inference_max_batch
    self._batcher = batching.Batcher(
      config.inference_max_wait_ms / 1000,
      most or batching.half(config.num_actors, num_envs),
      most,
    )
    self._figures = figures.Figures()
    self._sessions: dict[int, sessions.Session] = {}
    self._rows = 0  # environment steps since parameters were last requested
    self._listener = transport.Listener()
    stack.callback(self._listener.close)
    self._poll = select.epoll()
    stack.callback(self._poll.close)
    self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    stack.callback(os.close, self._wakeup)
    stack.callback(self._disconnect_all)
    self._connections: dict[int, transport.Connection] = {}
    self._poll.register(self._listener, select.EPOLLIN)
    self._poll.register(self._wakeup, select.EPOLLIN)

  def _info(self, index: int) -> base.ActorInfo:
    return base.ActorInfo(index, self._config.num_actors, self._experiment.seed)

  # The following thread.

  def _follow(self) -> None:
    """Fetches parameters when due, and reports once per second."""
    try:
      while not self._stop.is_set():
        wanted = self._waiting_for_newer
        if self._look.wait(_WAITED_FOR_S if wanted else self._ask_s):
          self._look.clear()
        if self._stop.is_set():
          return  # The learner may have ended already.
        if self._follower.fetch():
          with self._newer:
            self._parameters = self._newest()
            self._newer.notify_all()
        if self._reporter.due():
          self._reporter.report(self._numbers())
    except Exception as e:  # Raised in the serving thread, to end the node.
      self._fault = e

  def _newest(self) -> sound_acting.Parameters:
    return sound_acting.Parameters(self._follower.version, self._follower.theta)

  def _numbers(self) -> dict[str, float]:
    return {
      **self._figures.take(),
      'not_finite': self._policy.not_finite,
      'parameters_version': self._follower.version,
      'parameters_age_s': self._follower.age_s,
    }

  # The serving thread: only it calls what follows, but for `_in_loop`.

  def _loop(self) -> None:
    batcher = self._batcher
    until = float('inf')
    while time.monotonic() < until:
      if self._stop.is_set():
        if not self._connections:
          return
        # An actor that is disconnected first would take the server for dead.
        until = min(until, time.monotonic() + _GRACE_S)
      if self._fault is not None and not self._stop.is_set():
        raise self._fault
      for descriptor, _ in self._events():
        self._handle_event(descriptor)
      if self._too_old():
        time.sleep(_HELD_S)
        continue
      now = time.monotonic()
      while batcher.due(now):
        self._serve([self._sessions[key] for key in batcher.take(now)])
        now = time.monotonic()

  def _too_old(self) -> bool:
    return self._follower.age_s > self._config.max_param_age_s

  def _events(self) -> list[tuple[int, int]]:
    """Waits for events, at most until a batch is due."""
    wait_s = self._batcher.wait_s(time.monotonic())
    if wait_s is None:
      return self._poll.poll(_LOOK_S)
    # epoll rounds up to whole milliseconds: half of the default wait.
    select.select([self._poll], [], [], min(wait_s, _LOOK_S))
    return self._poll.poll(0)

  def _handle_event(self, descriptor: int) -> None:
    if descriptor == self._wakeup:
      os.eventfd_read(self._wakeup)
      self._run_inbox()
      return
    if descriptor == self._listener.fileno():
      connection = self._listener.accept()
      if connection is not None:
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLIN)
      return
    connection = self._connections.get(descriptor)
    if connection is None:
      return  # An earlier event of this batch has closed it.
    packet = connection.receive()
    if packet is None:
      self._disconnect(connection)
    elif packet and connection.index is not None:
      self._ask(self._sessions[connection.index])
    elif packet:
      self._handle_hello(connection, packet)

  def _run_inbox(self) -> None:
    while self._inbox:
      self._inbox.popleft()()

  def _handle_hello(
    self, connection: transport.Connection, packet: bytes
  ) -> None:
    try:
      hello = sessions.Hello(**json.loads(packet))
      refusal = self._admit(hello, connection)
    except (TypeError, ValueError):
      self._disconnect(connection)
      return
    if refusal is not None:
      connection.refuse(refusal)
      self._disconnect(connection)

  def _admit(
    self, hello: sessions.Hello, connection: transport.Connection | None
  ) -> str | None:
    """Begins an actor's run. Returns None, or a reason to refuse."""
    index = hello.index
    if hello.fingerprint != self._frames.fingerprint:
      return (
        f'Actor {index} has frames {hello.fingerprint}, but this server '
        f'{self._frames.fingerprint}, of {self._frames}. Give both the same '
        'agent, environment and actors.envs_per_actor.'
      )
    if not 0 <= index < self._config.num_actors:
      return f'There is no actor {index} of {self._config.num_actors}.'
    known = self._sessions.get(index)
    if known is not None:
      self._end(known)
    if connection is None:
      frame = frames.Frame(self._frames)
    else:
      frame = connection.admit(self._frames)
    actor = self._agent.actor(self._info(index), self._config.envs_per_actor)
    self._sessions[index] = sessions.Session(hello, actor, frame, connection)
    if connection is not None:
      connection.index = index
    return None

  def _end(self, session: sessions.Session) -> None:
    """Ends an actor's run and drops its pending request."""
    self._batcher.drop(session.index)
    del self._sessions[session.index]
    if session.connection is not None:
      session.connection.index = None
      self._disconnect(session.connection)
    session.close()

  def _disconnect(self, connection: transport.Connection) -> None:
    if connection.index is not None:
      self._end(self._sessions[connection.index])
      return
    del self._connections[connection.fileno()]
    self._poll.unregister(connection)
    connection.close()

  def _disconnect_all(self) -> None:
    for connection in list(self._connections.values()):
      self._disconnect(connection)
    for session in list(self._sessions.values()):
      self._end(session)
    with self._waking:
      self._ready.clear()
    self._run_inbox()  # Answers the calls that came in meanwhile.

  def _ask(self, session: sessions.Session) -> None:
    now = time.monotonic()
    if session.ask(now):
      self._batcher.add(session.index, self._frames.num_envs, now)

  def _ask_by(
    self, call: futures.Future, index: int, run_id: int, request: bytes
  ) -> None:
    session = self._sessions.get(index)
    if session is None or session.run_id != run_id:
      call.set_exception(transport.UnknownRun(run_id))
      return
    now = time.monotonic()
    if session.ask_by(call, request, now):
      self._batcher.add(index, self._frames.num_envs, now)

  def _in_loop(
    self, do: Callable[[futures.Future], None], timeout_s: float
  ) -> Any:
    """Runs `do` in the serving thread. Returns or raises what it sets."""
    call: futures.Future = futures.Future()

    def guarded() -> None:
      try:
        do(call)
      except Exception as e:  # of what was sent, a hello that is none, say
        call.set_exception(e)

    with self._waking:
      if not self._ready.is_set():
        raise transport.UnknownRun('The server has just been started.')
      self._inbox.append(guarded)
      os.eventfd_write(self._wakeup, 1)
    try:
      return call.result(timeout_s)
    except transport.Late:
      raise  # Set by `do`: keeps its message.
    except futures.TimeoutError as e:
      raise transport.Late(f'no answer within {timeout_s:g} s') from e

  def _serve(self, batch: list[sessions.Session]) -> None:
    start = time.monotonic()
    acted = self._policy.act(
      self._parameters, [session.request() for session in batch]
    )
    end = time.monotonic()
    age_s = self._follower.age_s
    for session, actions in zip(batch, acted.actions):
      assert session.since is not None
      since = session.since
      if actions is None:
        self._figures.refused += 1  # before the actor hears of it
        session.refuse(
          'The network gives no finite numbers for these observations, with '
          f'parameters of version {acted.version}.'
        )
      else:
        session.answer(actions, acted.version, age_s)
      self._figures.answered(time.monotonic() - since)
    rows = self._frames.num_envs * len(batch)
    self._figures.batch(rows, acted.passes, end - start)
    self._rows += rows
    if self._rows >= self._config.update_period:
      self._rows = 0
      self._look.set()
