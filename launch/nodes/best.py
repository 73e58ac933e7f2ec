"""Greedy evaluation: metrics rows, the best parameters, the run's target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import logging
import os
from typing import Any

import numpy as np

from murmuration.agents import base
from murmuration.environment_loops import evaluation
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import pulse
from murmuration.launch import reporting
from murmuration.launch.nodes import saves
from murmuration.run_records import checkpoints
from murmuration.run_records import durable
from murmuration.run_records import run_directory

_logger = logging.getLogger(__name__)
_CONFIRMATION_EPISODES = 20


class Best:
  """Keeps the best parameters of a run in its checkpoints.

  A confirmed return ranks above any unconfirmed one; of equal returns, the
  later one wins. The best of many evaluations is partly luck: evaluate it again
  for an unbiased estimate. A resumed run continues to learn, so a confirmation
  from an earlier start does not outrank its new results.
  """

  def __init__(self, run_dir: str | os.PathLike[str] | None):
    """Reads what the run has kept so far; without `run_dir` nothing is kept."""
    self._rank = (False, -np.inf, -1)
    self._unwritten: dict[str, Any] | None = None  # the best, if a write failed
    self._path = None
    self._start = 0  # how often the run had been started or resumed
    if run_dir is None:
      return
    self._path = checkpoints.directory(run_dir) / checkpoints.BEST
    mark = durable.unsaved(self._path)
    if mark.exists():
      _logger.warning('The best of an earlier start could not be written.')
      mark.unlink(missing_ok=True)  # what it was of is gone
    with contextlib.suppress(FileNotFoundError):
      self._start = len(run_directory.RunDirectory(run_dir).commands())
    kept = checkpoints.read(self._path, repair=True)
    if kept is not None:
      self._rank = (
        bool(kept['confirmed']) and kept.get('start') == self._start,
        float(kept['return_mean']),
        int(kept['steps']),
      )

  def offer(
    self, theta: np.ndarray, mean: float, steps: int, confirmed: bool = False
  ) -> None:
    """Keeps `theta [D]` if it ranks above the parameters kept so far.

    `steps` are those of one agent that it has learned from. A `mean` of NaN,
    where episodes broke, is never the best.
    """
    if self._path is None:
      return
    rank = (confirmed, float(mean), steps)
    if not np.isnan(mean) and rank >= self._rank:
      self._rank = rank
      self._unwritten = {
        'theta': np.array(theta), 'return_mean': mean, 'steps': steps,
        'confirmed': confirmed, 'start': self._start,
      }  # fmt: skip
    self.write()

  def write(self) -> None:
    """Writes the best, unless that is done; after an error, call it again."""
    if self._path is None or self._unwritten is None:
      return
    with pulse.survives(checkpoints.BEST):
      checkpoints.write(self._path, **self._unwritten)
      self._unwritten = None


class Judge:
  """Plays greedy episodes, keeps the best parameters, ends a run at its target.

  `played_at` are the steps of a member at the last evaluation, -1 without one;
  `earlier` those at all evaluations of the run before this life of the node.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    agent: base.Agent,
    reporter: reporting.Reporter,
    members: int = 1,
    ends_run: bool = True,
  ):
    """Reads earlier evaluations of the run.

    `members` is P. With `ends_run`, a confirmed `run.target_return` ends it.
    """
    self._experiment = experiment
    self._agent = agent
    self._reporter = reporter
    self._target = experiment.run.target_return if ends_run else None
    directory = experiment.run_dir
    # With several members, the last evaluation tells which one is best.
    self._best = Best(directory if members == 1 else None)
    rows: list[dict[str, Any]] = []
    if directory is not None:
      rows = run_directory.RunDirectory(directory).metrics('evaluation')
    self.earlier = [int(row['actor_steps_per_member']) for row in rows]
    self.played_at = max(self.earlier, default=-1)

  def play(
    self,
    thetas: np.ndarray,
    steps: int,
    should_stop: Callable[[], bool],
    more: Callable[[list[float]], dict[str, Any]],
  ) -> bool:
    """Plays `run.eval_episodes` with each member. Returns False if stopped.

    `thetas [P, D]` have learned from `steps` of a member. `should_stop` ends
    the evaluation without a row; `more` maps the members' mean returns to
    further columns of the row.
    """
    run = self._experiment.run
    self._best.write()  # this evaluation may be cut, before it offers its own
    results = self._play(
      thetas, run.eval_episodes, f'evaluation at {steps}', should_stop
    )
    if results is None:
      return False
    self.played_at = steps
    means = [result.mean for result in results]
    self._best.offer(thetas[0], means[0], steps)
    self._reporter.log(
      'evaluation',
      {
        'actor_steps': steps * self._experiment.num_agents,
        'actor_steps_per_member': steps,
        'return_mean': float(np.mean(means)),
        'return_std': float(np.std(means)) if means[1:] else results[0].std,
        'returns': [float(r) for result in results for r in result.returns],
        'broken_episodes': sum(result.broken for result in results),
        **more(means),
      },
    )
    if self._target is not None and np.min(means) >= self._target:
      self._confirm(thetas, steps, self._target, should_stop)
    return True

  def close(self) -> None:
    """Writes what the disk did not take when it was evaluated."""
    self._best.write()

  def _confirm(
    self,
    thetas: np.ndarray,
    steps: int,
    target: float,
    should_stop: Callable[[], bool],
  ) -> None:
    """Ends the run if each member keeps the target over more episodes."""
    # The best of many evaluations is partly luck, so it is repeated.
    count = _CONFIRMATION_EPISODES
    results = self._play(thetas, count, f'confirmation at {steps}', should_stop)
    if results is None:
      return
    least = float(np.min([result.mean for result in results]))
    if least >= target:
      self._best.offer(thetas[0], least, steps, confirmed=True)
      self._reporter.finish(
        f'greedy return {least:.1f} over {count} episodes after {steps:,} '
        f'steps of an agent, {target:g} was asked for',
        {'return_mean': least, 'episodes': count, 'steps_of_agent': steps},
      )

  def _play(
    self,
    thetas: np.ndarray,
    count: int,
    purpose: str,
    should_stop: Callable[[], bool],
  ) -> list[evaluation.VectorResult] | None:
    """Plays `count` greedy episodes of each member; None if told to stop."""
    experiment = self._experiment
    # All members get the same seed, independent of the training environments'.
    seed = base.actor_seed(experiment.actor_info(0), purpose)
    results = []
    for theta in thetas:
      found = evaluation.evaluate_vector(
        self._agent.greedy(theta),
        experiment.environment,
        count,
        seed,
        max_steps=experiment.eval_limit,
        should_stop=should_stop,
        on_fault=experiment.run.on_fault,
        epsilon=experiment.run.eval_epsilon,
        building=pulse.busy('building environments'),
      )
      if found is None:
        return None
      results.append(found)
    return results


class SelfEvaluation:
  """A worker's evaluation of its own members, every `eval_period` steps."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    agent: base.Agent,
    members: Sequence[base.ActorInfo],
    reporter: reporting.Reporter,
    should_stop: Callable[[], bool],
  ):
    self._experiment = experiment
    self._should_stop = should_stop
    self._next: int | None = None
    self._judge = Judge(experiment, agent, reporter, len(members))

  def _after(self, steps: int) -> int:
    period = self._experiment.eval_period
    return (steps // period + 1) * period

  def now_and_then(self, theta: np.ndarray, steps: int) -> None:
    """Evaluates `theta [P, D]` if that is due after `steps` of a member."""
    if self._next is None:
      # A resumed run makes up for an evaluation that was cut, but repeats none.
      # Offline it may be behind the last one, and be there a second time.
      played_at = self._judge.played_at
      self._next = played_at if steps < played_at else self._after(played_at)
    if steps >= self._next:
      self._next = self._after(steps)
      self._play(theta, steps)

  def last(self, theta: np.ndarray, steps: int) -> None:
    """Evaluates the final parameters, unless that has been done."""
    if self._judge.played_at < steps and not self._play(theta, steps):
      _logger.warning(
        'The last evaluation, after %d steps, was cut: the run was stopped.',
        steps,
      )

  def close(self) -> None:
    self._judge.close()

  def _over(self) -> bool:
    pulse.worked(moved=True)  # The run waits for evaluation steps too.
    return self._should_stop()

  def _play(self, thetas: np.ndarray, steps: int) -> bool:
    played = self._judge.play(
      thetas, steps, self._over, lambda means: {'member_returns': means}
    )
    if played:
      with pulse.survives(checkpoints.AGENTS):
        saves.write_acting(self._experiment.run_dir, thetas, steps)
    return played
