"""The master of evolution strategies: hands out noise, takes back returns.

Workers are stateless. A task is a few numbers (generation, task number, noise
indices), and its result is the same on any worker. So a dead worker's task is
handed out again, and generations do not depend on the number of workers.

    worker                                        master
    next_task(worker, has)  ------------------->  generation, task [theta]
    deliver(..., returns, lengths)  ----------->  updates when all are there
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import logging
import pathlib
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from murmuration.agents import base
from murmuration.agents import evolution
from murmuration.agents import strategy
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.nodes import saves
from murmuration.launch.services import variables
from murmuration.run_records import checkpoints

_logger = logging.getLogger(__name__)
CHECKPOINT = 'evolution.npz'  # in RUN/checkpoints/
_CHECKPOINT_PERIOD_S = 5.0
_HOLD_S = 2.0  # a call of `next_task` waits for a task, at most
_TICK_S = 0.1
_SAY_S = 10.0  # between two warnings about a slow generation
_MANY_DISCARDED = 0.2  # share of results above which a remark is logged


class Result(NamedTuple):
  """The result of a task of n pairs; a return is NaN if its episode broke."""

  returns: np.ndarray  # with noise + and -, float32 [n, 2]
  lengths: np.ndarray  # environment steps, int32 [n, 2]
  sums: evolution.Sums | None  # of observations; None if none were counted


@dataclasses.dataclass
class _Task:
  indices: np.ndarray
  result: Result | None = None
  workers: set[int] = dataclasses.field(default_factory=set)
  since: float = 0.0  # when it was last handed out; 0 if never


class Master:
  """Holds theta, its optimizer and the statistics of observations."""

  serves = ('get_parameters', 'next_task', 'deliver')

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    config: evolution.Config,
    counter: Any,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts anew, or from its checkpoint in the run's directory."""
    self._experiment = experiment
    self._config = config
    self._clock = clock
    self._reporter = reporting.Reporter('master/0', counter)
    agent = experiment.make_agent()
    table = evolution.noise_table(config.table_seed, config.table_size)
    theta = agent.initial(base.actor_seed(experiment.actor_info(0), 'initial'))
    self._strategy = strategy.Strategy(config, agent.layout, theta, table)
    self._published = variables.Published(agent.layout)  # without noise
    self.get_parameters = self._published.get
    self._changed = threading.Condition()
    self._tasks: list[_Task] = []
    self._over = False
    self._taken = self._discarded = 0  # results
    self._again = 0  # tasks that were handed out once more
    self._discarded_steps = 0  # not reported yet
    self._metrics: dict[str, float] = {}
    self._path: pathlib.Path | None = None
    if experiment.run_dir is not None:
      self._path = checkpoints.directory(experiment.run_dir) / CHECKPOINT
      saved = checkpoints.read(self._path, repair=True)
      if saved is not None:
        self._strategy.restore(saved)
        _logger.info('Going on from generation %d.', self._strategy.generation)
    self._saved = clock()
    with self._changed:
      self._open()

  # Served over RPC.

  def next_task(self, worker: int, has: int) -> dict[str, Any] | None:
    """The next task for a worker, or None: call again.

    A task that the worker was playing before is taken for lost. `has` is the
    `key` of its theta; -1 for none.

    Returns:
      'generation', 'task' and 'key'; also 'theta', encoded, if `has` is another
      key.
    """
    with self._changed:
      for task in self._tasks:
        task.workers.discard(worker)
      self._changed.wait_for(
        lambda: self._over or self._choose() is not None, _HOLD_S
      )
      number = self._choose()
      if self._over or number is None:
        return None
      task = self._tasks[number]
      self._again += task.since > 0
      task.workers.add(worker)
      task.since = self._clock()
      found = {
        'generation': self._strategy.generation,
        'task': number,
        'key': self._key,
      }
      if has != self._key:
        found['theta'] = self._published.get(-1)['theta']
      return found

  def deliver(
    self,
    worker: int,
    key: int,
    task: int,
    returns: np.ndarray,
    lengths: np.ndarray,
    sums: tuple | None,
  ) -> bool:
    """Takes the result of a task. Returns whether it was used.

    `key` is that of the perturbed theta. For the last three arguments see
    `Result`.
    """
    with self._changed:
      self._taken += 1
      known = key == self._key and task < len(self._tasks)
      if not known or self._tasks[task].result is not None:
        self._discard(lengths)
        return False
      found = self._tasks[task]
      found.result = Result(
        returns,
        lengths,
        None if sums is None else evolution.Sums(*sums),
      )
      if self._complete():
        self._changed.notify_all()
      return True

  # The node.

  def run(self, stop: threading.Event | None = None) -> None:
    """Updates theta after each complete generation, until the run ends."""
    stop = pulse.stop_event(stop)
    since = said = self._clock()
    while not stop.is_set() and not self._over:
      with self._changed:
        complete = self._changed.wait_for(self._complete, _TICK_S)
      now = self._clock()
      if complete:
        self._end_generation(now - since)
        since = said = now
      elif now - said > _SAY_S:
        said = now
        self._say(now - since)
      if not complete and self._reporter.due():
        over = self._report()
        with self._changed:
          self._over = over
          self._changed.notify_all()
    self._published.end()
    self._report()
    self._save()
    # The evaluator may still ask for the last theta.
    while not stop.wait(_TICK_S):
      if self._reporter.due():
        self._report()

  def _report(self) -> bool:
    """Sends a report, from the node's thread alone. Whether the run is over."""
    with self._changed:
      steps, self._discarded_steps = self._discarded_steps, 0
      share = self._discarded / max(self._taken, 1)
    if steps:
      self._reporter.count(discarded_steps=steps)
    if self._taken >= 10 and share > _MANY_DISCARDED:
      self._reporter.remark(
        [
          f'{share:.0%} of the results came too late or twice. Raise '
          'evolution.patience_s, or lower evolution.pairs_per_task.'
        ]
      )
    return self._reporter.report(self._metrics)

  def _end_generation(self, seconds: float) -> None:
    """Updates theta and begins the next generation."""
    # In the order of the tasks, not of arrival.
    results = self._results()
    returns = np.concatenate([result.returns for result in results])
    lengths = np.concatenate([result.lengths for result in results])
    total: evolution.Sums | None = None
    for result in results:
      if result.sums is not None:
        total = result.sums if total is None else total.plus(result.sums)
    indices = np.concatenate([task.indices for task in self._tasks])
    found = self._strategy.update(indices, returns, total)
    row = {
      'generation': self._strategy.generation,
      'steps': int(lengths.sum()),
      **found,
      'parameters': self._strategy.key,
    }
    dropped = int(np.isnan(returns).sum())
    self._reporter.count(
      actor_steps=int(lengths.sum()),
      episodes=lengths.size - dropped,
      # Without a return there is no update.
      learner_steps=int('return_mean' in found),
    )
    self._reporter.count_dropped(dropped)
    self._metrics = {
      **row,
      'generation_s': seconds,
      'tasks_given_again': self._again,
      'results_discarded': self._discarded,
    }
    if self._strategy.generation == 1:
      self._reporter.log('first_update', {'unix_time_s': time.time()})
    # After each generation, so that speed does not decide which is the last.
    over = self._report()
    with self._changed:
      self._over = over
      self._open()
      self._changed.notify_all()
    self._reporter.log('generation', row)
    if self._clock() - self._saved > _CHECKPOINT_PERIOD_S:
      self._save()

  def _say(self, seconds: float) -> None:
    with self._changed:
      missing = [i for i, t in enumerate(self._tasks) if t.result is None]
      held = sorted({w for i in missing for w in self._tasks[i].workers})
    _logger.warning(
      'Generation %d waits for %d of %d tasks since %.0f s; workers %s have '
      'them.',
      self._strategy.generation,
      len(missing),
      len(self._tasks),
      seconds,
      held,
    )

  def _save(self) -> None:
    self._saved = self._clock()
    if self._path is None:
      return
    what = 'a checkpoint'
    with pulse.survives(what), pulse.busy(what):
      checkpoints.write(self._path, **self._strategy.save())
      saves.write_acting(
        self._experiment.run_dir,
        self._strategy.theta[None],
        self._strategy.generation,
      )

  # With the lock held.

  def _open(self) -> None:
    theta = self._strategy.theta
    self._published.publish(self._strategy.generation, theta)
    # A hash of theta and generation, by which a master restored from its
    # checkpoint recognizes results that belong to its present theta.
    self._key = self._strategy.key
    self._tasks = [
      _Task(
        evolution.draws(
          self._config,
          self._experiment.seed,
          self._strategy.generation,
          number,
          self._strategy.dim,
        ).indices
      )
      for number in range(self._config.tasks)
    ]

  def _results(self) -> list[Result]:
    """The results received so far, in the order of their tasks."""
    return [t.result for t in self._tasks if t.result is not None]

  def _complete(self) -> bool:
    """Whether all results are there."""
    return len(self._results()) == len(self._tasks)

  def _choose(self) -> int | None:
    """An unfinished task that no worker has, or one held for too long."""
    open_ = [i for i, task in enumerate(self._tasks) if task.result is None]
    for i in open_:
      if not self._tasks[i].workers:
        return i
    late = self._clock() - self._config.patience_s
    return next((i for i in open_ if self._tasks[i].since < late), None)

  def _discard(self, lengths: np.ndarray) -> None:
    self._discarded += 1
    self._discarded_steps += int(lengths.sum())
