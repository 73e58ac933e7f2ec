"""The evaluator: greedy episodes with the newest parameters, during a run."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import math
import os
import queue
import threading
import time
from typing import Any

import numpy as np

from murmuration.agents import parameters
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch import rpc
from murmuration.launch.nodes import best

_logger = logging.getLogger(__name__)
_WAIT_S = 0.1
_JOIN_S = 1.0
_LOOK_S = 0.05  # between two requests to the counter for the steps so far
_LAST_EVALUATIONS_S = 120.0  # evaluations after the run's end, at most
_SAY_S = 5.0  # of these, to say what was left
# The run waits this long for an evaluator that does not move, such as where an
# environment hangs. Less than a silent node has until it is killed: one that is
# started after the end would be waited for anew.
_HOLD_S = 30.0
_HOLD_PERIOD_S = 5.0
_LAST_UPDATE_S = 30.0  # for what a learner still does after the run's end
_WAITING_BYTES = 2**30  # of the snapshots that wait, at most


@dataclasses.dataclass(frozen=True)
class _Snapshot:
  """Parameters waiting for their evaluation."""

  steps: int  # of one agent
  version: int
  theta: np.ndarray  # [D]
  taken_at: float  # time.monotonic()


class Evaluator:
  """Evaluates the parameters periodically. No other node waits for it.

  A snapshot of the parameters is taken when an evaluation is due, and evaluated
  when there is time, oldest first, at last after the end of the run. So a run
  that is faster than its evaluations still gets a complete curve. Where a
  target ends the run, the newest parameters matter: a snapshot replaces those
  that wait. If memory is short, it replaces the oldest.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    counter: Any,
    server: Any,
    ends_run: bool = False,
  ):
    """`server` is a client of a node that serves `get_parameters`.

    With `ends_run`, a confirmed `run.target_return` ends the run.
    """
    self._experiment = experiment
    self._counter = counter
    self._server = server
    self._reporter = reporting.Reporter('evaluator/0', counter)
    self._agent = experiment.make_agent()
    self._waiting: queue.Queue[_Snapshot] = queue.Queue()
    self._newest_only = ends_run and experiment.run.target_return is not None
    self._judge = best.Judge(
      experiment, self._agent, self._reporter, ends_run=ends_run
    )
    # Steps of the newest snapshot. A resumed run does not repeat its last one.
    self._taken = self._judge.played_at
    self._version = -1  # of the newest snapshot
    self._ended: float | None = None  # when the run did; time.monotonic()
    self._held = -math.inf  # when the counter was last asked to wait
    self._longest_s = 0.0  # of an evaluation so far
    self._missed = 0  # snapshots that were left out or cut
    self._fault: Exception | None = None  # of the thread that takes them
    period = experiment.eval_period
    parts = self._taken // period + 1
    without = parts - len({steps // period for steps in self._judge.earlier})
    if without:
      _logger.info(
        'Of the %d parts of the run up to step %d, by the present '
        'run.evaluations, %d have no evaluation. A killed evaluator loses what '
        'waited for it.',
        parts,
        self._taken,
        without,
      )

  def run(self, stop: threading.Event | None = None) -> None:
    """Evaluates every `eval_period` steps of one agent, and after the last."""
    stop = pulse.stop_event(stop)
    be_nice(self._experiment)
    over = threading.Event()
    taking = threading.Thread(
      target=self._take_snapshots, args=(stop, over), daemon=True
    )
    taking.start()
    while not stop.is_set():
      self._hold()
      if self._fault is not None:
        raise self._fault
      if self._reporter.due() and self._reporter.report():
        break
      try:
        snapshot = self._waiting.get(timeout=_WAIT_S)
      except queue.Empty:
        continue
      self._evaluate(snapshot, stop)
      pulse.worked()
    over.set()
    while taking.is_alive():  # It may be waiting for an answer.
      taking.join(_JOIN_S)
      pulse.beat()
    if not stop.is_set():
      self._finish(stop)
    self._judge.close()

  def _take_snapshots(
    self, stop: threading.Event, over: threading.Event
  ) -> None:
    try:
      period = self._experiment.eval_period
      done = self._taken // period
      while not stop.is_set() and not over.wait(_LOOK_S):
        if _asked(self._counter.finished):
          self._ended = time.monotonic()
          return
        steps = self._steps()
        if steps is None or steps // period <= done:
          continue
        if self._take(steps):
          done = steps // period
    except Exception as e:  # Raised in the main thread, to end the node.
      self._fault = e

  def _finish(self, stop: threading.Event) -> None:
    """After the run: evaluates the last update's result, and what is left.

    A learner may still make updates after the last step of its actors. Servers
    that do not know what is last (a star) are not waited for.
    """
    began, last = time.monotonic(), False
    if self._ended is None:
      self._ended = began
    while not self._over(stop) and not (last and self._waiting.empty()):
      self._hold()
      if not last:
        last = self._take_last(time.monotonic() - began > _LAST_UPDATE_S)
      if not self._waiting.empty():
        snapshot = self._waiting.get()
        # The newest comes last, and must have its time.
        late = last and self._over(stop, 2 * self._longest_s)
        if late and not self._waiting.empty():
          self._missed += 1
          continue
        # One that a later snapshot of the same step replaces is left out.
        if snapshot.steps < self._taken or snapshot.version == self._version:
          self._evaluate(snapshot, stop)
      elif not last:
        pulse.waits('the last update of the learner')
        time.sleep(_WAIT_S)
    missed = self._missed + self._waiting.qsize() + (not last)
    if missed:
      _logger.warning(
        'The run is over: %d snapshots of the parameters were not evaluated.',
        missed,
      )
    self._reporter.hold(0)

  def _hold(self) -> None:
    """Has the end of the run wait for this node, as long as it moves.

    Asked for before the end too: a busy process may hear of that too late, and
    the curve would lack its end.
    """
    now = time.monotonic()
    if now - self._held >= _HOLD_PERIOD_S:
      self._held = now
      self._reporter.hold(_HOLD_S)

  def _over(self, stop: threading.Event, in_s: float = 0.0) -> bool:
    """Whether no more may be evaluated, now or in so many seconds."""
    if stop.is_set() or self._ended is None:
      return stop.is_set()
    end = self._ended + _LAST_EVALUATIONS_S - _SAY_S
    return time.monotonic() + in_s > end

  def _take_last(self, late: bool) -> bool:
    """Queues what the learner ended with. Returns False if it goes on.

    With `late`, takes what there is.
    """
    answer = _asked(self._server.get_parameters, self._version)
    steps = self._steps()
    whole = answer is not None and answer.get('last', True)
    if not late and (steps is None or not whole):
      return False
    # What an earlier start of the run ended with is not played again.
    newer = answer is not None and -1 < self._version != answer['version']
    if steps is not None and (steps > self._taken or newer):
      whole = self._take(steps) and whole
    if not whole:
      _logger.warning(
        'The learner did not say within %.0f s what its last update made: what '
        'it learned since the last evaluation may not be evaluated.',
        _LAST_UPDATE_S,
      )
    return True

  def _steps(self) -> int | None:
    """Actor steps of one agent so far; None if the counter does not answer."""
    totals = _asked(self._counter.totals)
    if totals is None:
      return None
    return totals.get('actor_steps', 0) // self._experiment.num_agents

  def _take(self, steps: int) -> bool:
    """Queues a snapshot of the parameters. Returns whether there were any."""
    newest = _asked(self._server.get_parameters, -1)
    if newest is None or newest['theta'] is None:
      return False
    _, theta = parameters.decode(self._agent.layout, newest['theta'])
    self._taken, self._version = steps, int(newest['version'])
    most = 1 if self._newest_only else max(_WAITING_BYTES // theta.nbytes, 1)
    with self._waiting.mutex:
      while len(self._waiting.queue) >= most:
        self._waiting.queue.popleft()
        self._missed += 1
    self._waiting.put(_Snapshot(steps, self._version, theta, time.monotonic()))
    return True

  def _evaluate(self, snapshot: _Snapshot, stop: threading.Event) -> None:
    def cut() -> bool:
      self._hold()
      if self._ended is not None:
        # The run waits for evaluation steps too.
        pulse.worked(moved=True)
      return self._over(stop)

    began = time.monotonic()
    if not self._judge.play(
      snapshot.theta[None],
      snapshot.steps,
      cut,
      lambda _: {
        'version': snapshot.version,
        'age_s': time.monotonic() - snapshot.taken_at,
      },
    ):
      self._missed += 1
    self._longest_s = max(self._longest_s, time.monotonic() - began)


def _asked(call: Callable[..., Any], *arguments: Any) -> Any:
  """Another node's answer; None if the call fails."""
  try:
    return call(*arguments)
  except (rpc.Unavailable, rpc.RemoteError):
    return None


def be_nice(experiment: experiment_lib.Experiment) -> None:
  """Lowers the priority of the node's process, unless it is only a thread."""
  if threading.current_thread() is threading.main_thread():
    os.nice(experiment.run.background_niceness)
