"""Central inference: one server acts for all actors (SEED RL).

Espeholt et al. 2020, arXiv:1910.06591; docs/topologies/central_inference.md.

Actors keep their environments and send observations. The server has parameters,
recurrent states and exploration, and computes the requests of several actors in
one forward pass.

    actor                                      server
    join(index, run, seed)  ----------------->  a new run, with a new state
    act(index, run, step, observation, ...) ->  [a batch] actions, version

A request is numbered by (run, step). One that is repeated, because its answer
was lost, gets the same answer. The server saves nothing: after a restart it
knows no run, so actors join again and begin new episodes.
"""

from __future__ import annotations

from collections.abc import Callable
import logging
import os
import threading
import time
from typing import Any

import numpy as np

from murmuration.agents import base
from murmuration.agents import batched_acting
from murmuration.environment_loops import environments
from murmuration.launch import actor_settings
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch import rpc
from murmuration.launch.services import variables

_logger = logging.getLogger(__name__)
_TRY_S = 1.0  # a call waits for its answer, before the actor repeats it
_LOOK_S = 0.1  # between two checks whether to stop
_ASK_S = 0.5  # between two requests for newer parameters, at most
_WAITED_FOR_S = 0.002  # the same, while actors wait for them
_PAUSE_S = 0.1  # before a server that does not answer is asked again
# An actor that was silent for so many times the longest wait is not waited for.
_SILENT_WAITS = 10.0


class RunLost(RuntimeError):
  """The server has lost this actor's state: its episodes must begin anew."""


class NoAnswer(TimeoutError):
  """The server has not answered a request for too long."""


class Batcher:
  """Collects requests until a batch is worth a forward pass.

  A batch is due when `enough` environments are pending, when all active actors
  have sent a request, or when the oldest request has waited for `max_wait_s`.
  An actor that was silent for ten times as long, because it waits for replay or
  is dead, does not count as active. Callers pass the time.
  """

  def __init__(
    self, max_wait_s: float, enough: int, max_rows: int | None = None
  ):
    self._max_wait_s = max_wait_s
    self._enough = enough
    self._max_rows = max_rows
    self._oldest = 0.0
    self._pending: dict[int, int] = {}  # actor -> environments, oldest first
    self._heard: dict[int, float] = {}

  def add(self, actor: int, rows: int, now: float) -> None:
    """Adds a request for `rows` actions; its actor has no other one pending."""
    if not self._pending:
      self._oldest = now
    self._pending[actor] = rows
    self._heard[actor] = now

  def drop(self, actor: int) -> None:
    """Removes an actor that is gone, and its request if there is one."""
    self._pending.pop(actor, None)
    self._heard.pop(actor, None)

  def due(self, now: float) -> bool:
    """Whether `take` should be called."""
    if not self._pending:
      return False
    if sum(self._pending.values()) >= self._enough:
      return True
    if now - self._oldest >= self._max_wait_s:
      return True
    since = now - _SILENT_WAITS * self._max_wait_s
    return not any(
      heard > since and actor not in self._pending
      for actor, heard in self._heard.items()
    )

  def wait_s(self, now: float) -> float:
    """Seconds until a batch is due at the latest."""
    if not self._pending:
      return _LOOK_S
    return max(0.0, self._oldest + self._max_wait_s - now)

  def take(self, now: float) -> list[int]:
    """Removes and returns the actors of the next batch, oldest first.

    It has at least one request, and at most `max_rows` rows if it has several.
    The wait of the remaining requests starts again.
    """
    batch: list[int] = []
    rows = 0
    for actor, count in self._pending.items():
      if batch and self._max_rows is not None and rows + count > self._max_rows:
        break
      batch.append(actor)
      rows += count
    for actor in batch:
      del self._pending[actor]
    self._oldest = now
    return batch


class _Run:
  """One run of one actor; a restarted actor begins another."""

  def __init__(self, number: int, actor: Any, seed: Any):
    self.number = number
    self.actor = actor
    self.rng = np.random.default_rng(seed)
    self.asked = self.answered = -1  # steps
    self.request: batched_acting.Request | None = None
    self.ended: np.ndarray | None = None
    self.since = 0.0  # when the request arrived
    self.answer: dict[str, Any] = {}


class Server:
  """A node that acts for all actors, many in one forward pass."""

  serves = ('join', 'act', 'priorities', 'newer_than')

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: actor_settings.Config,
    counter: Any,
    learner: Any,
  ):
    self._experiment = experiment
    self._config = config
    self._reporter = reporting.Reporter('inference/0', counter)
    self._agent = agent = experiment.make_agent()
    spec = environments.spec(experiment.environment)
    self._wanted = (config.envs_per_actor, *spec.observation_shape)
    self._follower = variables.Follower(
      learner,
      agent.layout,
      config.max_param_age_s,
      should_stop=lambda: self._stop.is_set(),
    )
    self._acting = batched_acting.Acting(agent, config.envs_per_actor)
    self._judge = agent.actor(self._info(0), config.envs_per_actor)
    most = config.inference_max_batch
    # While half of the actors wait for actions, the others step environments.
    half = -(-config.num_actors // 2) * config.envs_per_actor
    self._batcher = Batcher(
      config.inference_max_wait_ms / 1000, most or half, most
    )
    self._changed = threading.Condition()  # and the lock of what follows
    self._runs: dict[int, _Run] = {}
    self._parameters: tuple[int, np.ndarray] | None = None  # version, theta
    self._waiting = 0  # actors that wait for newer parameters
    self._look = threading.Event()  # ask for parameters now
    self._rows = 0  # environment steps since parameters were last asked for
    self._fault: Exception | None = None  # of the following thread
    self._counts = {'batches': 0, 'rows': 0, 'pass_s': 0.0, 'wait_s': 0.0}
    self._since = time.monotonic()  # of the counts

  # Served.

  def join(self, index: int, run: int, seed: Any) -> bool:
    """Begins an actor's run; False: not yet, call again."""
    actor = self._agent.actor(self._info(index), self._config.envs_per_actor)
    with self._changed:
      if self._parameters is None:
        return False
      self._batcher.drop(index)
      self._runs[index] = _Run(run, actor, seed)
      self._changed.notify_all()
      return True

  def act(
    self,
    index: int,
    run: int,
    step: int,
    observation: np.ndarray,
    actor_steps: int,
    ended: np.ndarray | None,
  ) -> dict[str, Any] | None:
    """Actions for K environments.

    Args:
      index, run: which run of which actor.
      step: number of the request, from 0.
      observation: [K, ...].
      actor_steps: for exploration schedules.
      ended: which episodes ended with the previous step, bool [K], or None.

    Returns:
      None if the actor has to `join` first; {} if there is no answer yet: call
      again. Else 'action' [K, ...], 'version' and 'age_s' of the parameters,
      and 'behaviour', 'core' as of an `unrolls.UnrollActor`, or None.
    """
    if observation.shape != self._wanted:
      raise ValueError(
        f'Got observations of shape {list(observation.shape)}; by the '
        f"environment's spec they are {list(self._wanted)}."
      )
    with self._changed:
      mine = self._runs.get(index)
      if mine is None or mine.number != run:
        return None
      if step > mine.asked:
        now = time.monotonic()
        mine.asked, mine.since, mine.ended = step, now, ended
        mine.request = batched_acting.Request(
          mine.actor, observation, actor_steps, mine.rng
        )
        self._batcher.add(index, len(observation), now)
        self._changed.notify_all()
      self._changed.wait_for(
        lambda: mine.answered >= step or self._runs.get(index) is not mine,
        _TRY_S,
      )
      return mine.answer if mine.answered == step else {}

  def priorities(self, packed: np.ndarray) -> np.ndarray | None:
    """First priorities [M] of packed transitions [M, W]; None for all equal."""
    with self._changed:
      assert self._parameters is not None, 'an actor has to join first'
      _, theta = self._parameters
    return self._judge.priorities(theta, packed)

  def newer_than(self, version: int, timeout_s: float) -> bool:
    """Waits for parameters other than `version`. Returns whether they came."""
    with self._changed:
      self._waiting += 1
      self._look.set()
      try:
        return self._changed.wait_for(
          lambda: (self._parameters or (version,))[0] != version, timeout_s
        )
      finally:
        self._waiting -= 1

  # The node.

  def run(self, stop: threading.Event | None = None) -> None:
    """Serves until told to stop."""
    self._stop = stop = pulse.stop_event(stop)
    self._follower.start()
    self._take_parameters()
    threading.Thread(target=self._follow, daemon=True).start()
    while not stop.is_set():
      if self._fault is not None:
        raise self._fault
      if self._follower.age_s > self._config.max_param_age_s:
        pulse.waits('the learner: its parameters are too old to act with')
        stop.wait(_LOOK_S)
        continue
      with self._changed:
        now = time.monotonic()
        if not self._batcher.due(now):
          self._changed.wait(min(self._batcher.wait_s(now), _LOOK_S))
        now = time.monotonic()
        batch: list[_Run] = []
        if self._batcher.due(now):
          batch = [self._runs[index] for index in self._batcher.take(now)]
      if batch:
        self._serve(batch)

  def _info(self, index: int) -> base.ActorInfo:
    return base.ActorInfo(index, self._config.num_actors, self._experiment.seed)

  def _serve(self, batch: list[_Run]) -> None:
    """Answers the requests of a batch. The network runs without the lock."""
    assert self._parameters is not None
    version, theta = self._parameters
    begin = time.monotonic()
    requests = []
    for run in batch:
      assert run.request is not None
      if run.ended is not None:
        run.actor.ended(run.ended)
      requests.append(run.request)
    actions = self._acting.act(theta, requests)
    end = time.monotonic()
    with self._changed:
      for run, action in zip(batch, actions):
        run.answer = {
          # Copies: the next batch may overwrite these arrays.
          'action': np.array(action),
          'behaviour': _copied(getattr(run.actor, 'behaviour', None)),
          'core': _copied(getattr(run.actor, 'core', None)),
          'version': version,
          'age_s': self._follower.age_s,
        }
        run.answered = run.asked
        self._counts['wait_s'] += end - run.since
      rows = len(batch) * self._config.envs_per_actor
      self._counts['batches'] += 1
      self._counts['rows'] += rows
      self._counts['pass_s'] += end - begin
      self._changed.notify_all()
    pulse.worked()
    self._rows += rows
    if self._rows >= self._config.update_period:
      self._rows = 0
      self._look.set()

  # The following thread.

  def _follow(self) -> None:
    """Fetches parameters when due, and reports once per second."""
    # At least two requests before parameters are too old.
    ask_s = min(_ASK_S, max(self._config.max_param_age_s / 2, _WAITED_FOR_S))
    try:
      while not self._stop.is_set():
        if self._look.wait(_WAITED_FOR_S if self._waiting else ask_s):
          self._look.clear()
        if self._stop.is_set():
          return  # The learner may have ended already.
        if self._follower.fetch():
          self._take_parameters()
        if self._reporter.due():
          self._reporter.report(self._numbers())
    except Exception as e:  # Raised in the serving thread, to end the node.
      self._fault = e

  def _take_parameters(self) -> None:
    with self._changed:
      self._parameters = self._follower.version, self._follower.theta
      self._changed.notify_all()

  def _numbers(self) -> dict[str, float]:
    """Metrics since the last call; see the page for their meanings."""
    with self._changed:
      counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
      since, self._since = self._since, time.monotonic()
    found = {
      'parameters_version': self._follower.version,
      'parameters_age_s': self._follower.age_s,
    }
    if counts['batches']:
      requests = counts['rows'] / self._config.envs_per_actor
      found['mean_batch'] = counts['rows'] / counts['batches']
      found['pass_ms'] = 1e3 * counts['pass_s'] / counts['batches']
      found['wait_ms'] = 1e3 * counts['wait_s'] / requests
      found['requests_per_s'] = requests / (self._since - since)
    return found


def _copied(array: np.ndarray | None) -> np.ndarray | None:
  return None if array is None else np.array(array)


class RemotePolicy:
  """Acts for K environments; a `base.Actor` and a `variables.Follower` in one.

  Attributes:
    theta: empty; the parameters stay on the server.
    version: of the parameters that chose the last actions.
    age_s: of these parameters, see `variables.Follower`.
    behaviour, core: see `unrolls.UnrollActor`.
  """

  def __init__(
    self,
    server: Any,
    index: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    patience_s: float = pulse.WAIT_S,
  ):
    """Stores its arguments; `start` connects.

    `server` is a client of a `Server`. Exploration is by
    `np.random.default_rng(seed)`. A wait ends with `should_stop`, or after
    `patience_s`.
    """
    self._server = server.with_deadline(2 * _TRY_S)
    self._index = index
    self._seed = seed
    self._should_stop = should_stop
    self._patience_s = patience_s
    self._runs = 0
    self._uniform = False
    self.theta = np.zeros(0, np.float32)
    self.version = -1
    self.age_s = 0.0
    self.behaviour: np.ndarray | None = None
    self.core: np.ndarray | None = None

  # The interface of variables.Follower.

  def start(self) -> None:
    """Waits for the server and begins a run there.

    Raises:
      RunLost: the program stops.
      rpc.Unavailable: the server did not come up within `patience_s`.
    """
    self._run = int.from_bytes(os.urandom(7), 'little')
    # A later run must not repeat the random numbers of the first.
    seed = [self._seed, self._runs] if self._runs else self._seed
    self._retry(lambda: self._join(seed))
    self._runs += 1
    self._step = -1
    self._ended: np.ndarray | None = None

  def fetch(self) -> bool:
    """Returns False: the server fetches the parameters."""
    return False

  def fetch_newer(self, timeout_s: float) -> bool:
    """Waits until the server's parameters differ from those last acted with."""
    until = time.monotonic() + timeout_s
    while not self._should_stop() and (left := until - time.monotonic()) > 0:
      try:
        if self._server.newer_than(self.version, min(left, _TRY_S)):
          return True
      except (rpc.Unavailable, rpc.RemoteError):
        time.sleep(_PAUSE_S)
    return False

  # The interface of base.Actor and unrolls.UnrollActor.

  def act(self, theta, observation, actor_steps, rng) -> np.ndarray:
    """Actions [K, ...] of the server's policy.

    Raises:
      RunLost: the server was restarted and this actor has a new run there, so
        that its episodes must begin anew; or the program stops.
      NoAnswer: there was no answer within `patience_s`.
    """
    del theta, rng
    self._step += 1
    answer: dict[str, Any] | None = {}
    begin = time.monotonic()
    while not answer:
      if self._should_stop():
        raise RunLost('The program stops.')
      try:
        answer = self._server.act(
          self._index,
          self._run,
          self._step,
          np.asarray(observation),
          actor_steps,
          self._ended,
        )
      except rpc.Unavailable as e:
        _logger.debug('%s', e)
        time.sleep(_PAUSE_S)
      if answer is None:
        _logger.warning(
          'The inference server was restarted. All episodes begin anew; open '
          'windows and unrolls are dropped.'
        )
        self.start()
        raise RunLost('The inference server was restarted.')
      if not answer:
        self._wait(time.monotonic() - begin)
    self._ended = None
    self.version, self.age_s = int(answer['version']), float(answer['age_s'])
    self.behaviour, self.core = answer['behaviour'], answer['core']
    return np.array(answer['action'])  # what RPC returns is read-only

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
    """Does nothing: the server replaces a run when its actor comes back."""

  def _wait(self, waited_s: float) -> None:
    why = f'the inference server, for {waited_s:.0f} s: see its log'
    if waited_s > self._patience_s:
      raise NoAnswer(f'Gave up waiting for {why}.')
    pulse.waits(why)

  def _join(self, seed: Any) -> None:
    if not self._server.join(self._index, self._run, seed):
      raise rpc.Unavailable(
        self._server.address, 'join', True, 'it has no parameters yet'
      )

  def _retry(self, call: Callable[[], Any]) -> Any:
    """Repeats a call until the server answers, at most for `patience_s`."""
    try:
      return rpc.retry(call, self._patience_s, should_stop=self._should_stop)
    except rpc.Unavailable as e:
      if self._should_stop():
        raise RunLost('The program stops.') from e
      raise
