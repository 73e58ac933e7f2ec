"""A supervisor of a swarm: greedy episodes with candidates and theta_star."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import numpy as np

from agents import parameters
from agents.swarm import explorers
from environment_loops import environments
from environment_loops import evaluation
from environment_loops import faults
from environment_loops import vector
from launch import experiment as experiment_lib
from launch import pulse
from launch import reporting
from launch import rpc
from launch.nodes import evaluator

_logger = logging.getLogger(__name__)
_WAIT_S = 0.1
_SAY_S = 5.0  # between two calls of the star server's `playing`
_DEADLINE_S = 1.0  # of such a call


class Supervisor:
  """Plays the star server's episodes: greedy but for `run.eval_epsilon`."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: explorers.Config,
    index: int,
    counter: Any,
    server: Any,
  ):
    self._experiment = experiment
    self._config = config
    self._index = index
    self._server = server
    self._signs = server.with_deadline(_DEADLINE_S)
    self._reporter = reporting.Reporter(f'supervisor/{index}', counter)
    self._agent = experiment.make_agent()
    self._policy: evaluation.Policy | None = None
    self._holding = -1
    self._faults = 0

  def run(self, stop: threading.Event | None = None) -> None:
    """Plays until the program stops."""
    stop = pulse.stop_event(stop)
    evaluator.be_nice(self._experiment)
    # A restarted supervisor plays other episodes than the one that died.
    seed = np.random.SeedSequence(
      [self._experiment.seed, self._index, time.time_ns()]
    )
    with pulse.busy('building an environment'):
      environment = environments.make(
        self._experiment.environment, int(seed.generate_state(1)[0] >> 1)
      )
    try:
      while not stop.is_set():
        self._episode(environment, stop)
        if self._reporter.due():
          self._reporter.report()
    except rpc.Unavailable:
      if not stop.is_set():
        raise
    finally:
      environment.close()

  def _episode(self, environment: Any, stop: threading.Event) -> None:
    # Each call has its own patience: an episode may take longer.
    job = rpc.retry(
      lambda: self._server.next_episode(self._index, self._holding),
      should_stop=stop.is_set,
    )
    if job['ticket'] < 0:
      stop.wait(_WAIT_S)
      return
    if job['theta'] is not None:
      _, theta = parameters.decode(self._agent.layout, job['theta'])
      self._policy = self._agent.greedy(theta)
      epsilon = self._experiment.run.eval_epsilon
      if epsilon:
        self._policy = evaluation.Randomized(
          self._policy, self._agent.spec, epsilon, time.time_ns()
        )
      self._holding = job['candidate']
    assert self._policy is not None
    said, wanted, steps = time.monotonic(), True, 0

    def stopped() -> bool:
      nonlocal said, wanted, steps
      if time.monotonic() > said + _SAY_S:
        with contextlib.suppress(rpc.Unavailable):
          wanted = self._signs.playing(job['ticket'])
        said = time.monotonic()
      leaves = stop.is_set() or not wanted
      steps += not leaves
      return leaves

    episode_return = None
    try:
      episode_return = evaluation.run_episode(
        self._policy,
        environment,
        self._experiment.eval_limit,
        should_stop=stopped,
      )
    except faults.EnvironmentFault as e:
      if self._experiment.run.on_fault == vector.RAISE:
        raise
      # Part of an episode gives no return; the server asks for another one.
      self._faults += 1
      faults.say_dropped(_logger, self._faults, e)
      self._reporter.count(supervisor_faults=1)
      # A policy may break each of its episodes, at once and without end.
      stop.wait(self._config.confirmation_period_s)
    # Those of an episode that was left, or broke, were played too.
    self._reporter.count(supervisor_steps=steps)
    if episode_return is None:
      return
    taken = rpc.retry(
      lambda: self._server.report_episode(job['ticket'], episode_return),
      should_stop=stop.is_set,
    )
    if not taken:
      _logger.info('The star server no longer asks for this episode.')
    self._reporter.count(supervisor_episodes=1)
    if job['kind'] == 'confirmation':
      # Confirmations never stop; without a pause they would use a whole core.
      stop.wait(self._config.confirmation_period_s)
