"""A worker of evolution strategies: plays the episodes of perturbed policies.

All episodes of a task run side by side, in one vector environment and with one
batched forward pass over as many parameter vectors.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import Any

import numpy as np

from murmuration.agents import evolution
from murmuration.agents import parameters
from murmuration.environment_loops import episodes
from murmuration.environment_loops import vector
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch import rpc

_PAUSE_S = 0.2  # before a master without a task is asked again


class Worker:
  """Plays the master's tasks. It may die at any time."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: evolution.Config,
    index: int,
    counter: Any,
    master: Any,
  ):
    self._experiment = experiment
    self._config = config
    self._index = index
    self._master = master
    self._reporter = reporting.Reporter(f'worker/{index}', counter)
    self._environments: dict[int, vector.VectorEnvironment] = {}
    self._key = -1  # of theta; -1 before there is one
    self._played = {'tasks': 0, 'steps': 0}

  def run(self, stop: threading.Event | None = None) -> None:
    """Plays until the run is over."""
    self._stop = stop = pulse.stop_event(stop)
    config = self._config
    self._agent = agent = self._experiment.make_agent()
    with pulse.busy('making the table of noise'):
      self._table = evolution.noise_table(config.table_seed, config.table_size)
    self._theta = np.zeros(agent.layout.size, np.float32)
    try:
      self._loop()
    except rpc.Unavailable:
      if not self._over():
        raise
    finally:
      for environment in self._environments.values():
        environment.close()

  def _loop(self) -> None:
    place = evolution.perturbed(self._agent.layout)
    while not self._over():
      asked = time.monotonic()
      task = rpc.retry(
        lambda: self._master.next_task(self._index, self._key),
        math.inf,
        should_stop=self._over,
      )
      if task is None:
        # At once where the run is over, of which the counter tells this node.
        if time.monotonic() - asked < _PAUSE_S:
          self._stop.wait(_PAUSE_S)
        continue
      if 'theta' in task:
        _, self._theta = parameters.decode(self._agent.layout, task['theta'])
        self._key = task['key']
      drawn = evolution.draws(
        self._config,
        self._experiment.seed,
        task['generation'],
        task['task'],
        place.stop - place.start,
      )
      played = self.play(self._theta, drawn)
      if played is None:
        return
      result, sums = played
      # A lost result is not sent again: the master hands the task out anew.
      with contextlib.suppress(rpc.Unavailable):
        self._master.deliver(
          self._index,
          self._key,
          task['task'],
          result.returns.astype(np.float32).reshape(-1, 2),
          result.lengths.astype(np.int32).reshape(-1, 2),
          tuple(sums) if sums.number else None,
        )
      pulse.worked()
      self._played['tasks'] += 1
      self._played['steps'] += int(result.lengths.sum())

  def play(
    self, theta: np.ndarray, drawn: evolution.Draws
  ) -> tuple[episodes.Result, evolution.Sums] | None:
    """Plays a task's episodes for `theta [D]`; None if the run has ended."""
    num = min(self._config.envs_per_worker, 2 * len(drawn.indices))
    if num not in self._environments:
      with pulse.busy('building environments'):
        self._environments[num] = vector.make_vector(
          self._experiment.environment,
          num,
          0,  # Each episode has its own seed.
          on_fault=self._experiment.run.on_fault,
          # A generation waits for all episodes. Without a limit, a policy that
          # never fails would never end one.
          max_steps=self._experiment.run.eval_max_steps,
        )
    policy = evolution.Perturbed(
      self._config, self._agent, self._table, theta, drawn, num
    )
    result = episodes.play(
      policy, self._environments[num], drawn.seeds, self._stepped
    )
    return None if result is None else (result, policy.sums)

  def _stepped(self) -> bool:
    """Calls `_over` between steps: a single task may take minutes."""
    pulse.worked(moved=True)
    return self._over()

  def _over(self) -> bool:
    """Whether the run is over. Also sends a report if one is due."""
    if self._stop.is_set() or self._reporter.finished:
      return True
    return self._reporter.due() and self._reporter.report(self._played)
