"""The evaluator: greedy episodes with the newest parameters, during a run."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import os
import queue
import threading
import time
from typing import Any

import numpy as np

from agents import parameters
from launch import experiment as experiment_lib
from launch import pulse
from launch import rpc
from launch.nodes import best
from run_records import reporting

_logger = logging.getLogger(__name__)
_WAIT_S = 0.1
_JOIN_S = 1.0
_LOOK_S = 0.05  # between two requests to the counter for the steps so far
_LAST_EVALUATIONS_S = 120.0  # evaluations after the run's end, at most
_SAY_S = 5.0  # before the counter lets go: to say what was left
_LAST_UPDATE_S = 30.0  # for what a learner still does after the run's end


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
  when there is time, the newest first and the rest after the end of the run. So
  a run that is faster than its evaluations still gets a complete curve.
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
    self._waiting: queue.LifoQueue[_Snapshot] = queue.LifoQueue()
    self._judge = best.Judge(
      experiment, self._agent, self._reporter, ends_run=ends_run
    )
    # Steps of the newest snapshot. A resumed run does not repeat its last one.
    self._taken = self._judge.played_at

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
      if self._reporter.due() and self._reporter.report():
        break
      try:
        snapshot = self._waiting.get(timeout=_WAIT_S)
      except queue.Empty:
        continue
      self._evaluate(snapshot, stop.is_set)
      pulse.worked()
    over.set()
    while taking.is_alive():  # It may be waiting for an answer.
      taking.join(_JOIN_S)
      pulse.beat()
    if not stop.is_set():
      self._finish(stop)

  def _take_snapshots(
    self, stop: threading.Event, over: threading.Event
  ) -> None:
    period = self._experiment.eval_period
    budget = self._experiment.total_steps // self._experiment.num_agents
    done = self._taken // period
    while not stop.is_set() and not over.wait(_LOOK_S):
      if _asked(self._counter.finished):
        # Called here because an evaluation may outlast the program's own wait.
        self._reporter.hold(_LAST_EVALUATIONS_S)
        return
      steps = self._steps()
      if steps is None or steps // period <= done or steps >= budget:
        continue  # What is left at the end is `_finish`'s.
      if self._take(steps):
        done = steps // period

  def _finish(self, stop: threading.Event) -> None:
    """After the run: evaluates what came last and the snapshots left."""
    self._reporter.hold(_LAST_EVALUATIONS_S)
    until = time.monotonic() + _LAST_EVALUATIONS_S - _SAY_S

    def over() -> bool:
      return stop.is_set() or time.monotonic() > until

    steps = self._steps()
    if steps is not None and steps > self._taken:
      self._await_last(over)
      self._take(steps)
    cut = 0
    while not self._waiting.empty() and not over():
      pulse.worked(moved=True)  # The run waits for evaluation steps too.
      cut += not self._evaluate(self._waiting.get(), over)
    left = cut + self._waiting.qsize()
    if left:
      _logger.warning(
        'The run is over: %d snapshots of the parameters were not evaluated.',
        left,
      )
    self._reporter.hold(0)

  def _await_last(self, over: Callable[[], bool]) -> None:
    """Waits until the learner has made its last update.

    It may still make some after the last step of its actors. Servers that do
    not know what is last (a star, the shards) are not waited for.
    """
    until, have = time.monotonic() + _LAST_UPDATE_S, -1
    while not over():
      answer = _asked(self._server.get_parameters, have)
      if answer is not None:
        have = answer['version']
        if answer.get('last', True):
          return
      if time.monotonic() > until:
        _logger.warning(
          'The learner did not end within %.0f s of the run: its last updates '
          'are not evaluated.',
          _LAST_UPDATE_S,
        )
        return
      pulse.waits('the last update of the learner')
      time.sleep(_WAIT_S)

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
    self._taken = steps
    self._waiting.put(
      _Snapshot(steps, int(newest['version']), theta, time.monotonic())
    )
    return True

  def _evaluate(
    self, snapshot: _Snapshot, should_stop: Callable[[], bool]
  ) -> bool:
    return self._judge.play(
      snapshot.theta[None],
      snapshot.steps,
      should_stop,
      lambda _: {
        'version': snapshot.version,
        'age_s': time.monotonic() - snapshot.taken_at,
      },
    )


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
