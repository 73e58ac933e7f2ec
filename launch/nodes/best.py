"""Greedy episodes of a run: their rows, the best parameters, the goal."""

from __future__ import annotations

from collections.abc import Callable
import os
from typing import Any

import numpy as np

from agents import base
from environment_loops import evaluation
from launch import experiment as experiment_lib
from launch import pulse
from run_records import checkpoints
from run_records import reporting
from run_records import run_directory

_CONFIRMATION_EPISODES = 20
_LONG_S = 300.0  # its environments may take to build


class Best:
  """Keeps the best parameters of a run in its checkpoints.

  A confirmed return counts before one that was not; of equal returns the later
  one counts. The best of many evaluations is partly luck: to know what it is
  worth, play it again. A run that is resumed goes on learning: what comes then
  is not held against a confirmation of before.
  """

  def __init__(self, run_dir: str | os.PathLike[str] | None):
    """Takes up what an earlier start of the run has kept.

    Args:
      run_dir: of the run; None keeps nothing.
    """
    self._rank = (False, -np.inf, -1)
    self._path = None
    if run_dir is None:
      return
    self._path = checkpoints.directory(run_dir) / checkpoints.BEST
    kept = checkpoints.read_to_play(self._path)
    if kept is not None:
      self._rank = (
        bool(kept['confirmed']) and pulse.life()[1] > 1,
        float(kept['return_mean']),
        int(kept['steps']),
      )

  def offer(
    self, theta: np.ndarray, mean: float, steps: int, confirmed: bool = False
  ) -> None:
    """Keeps `theta [D]` if it is better than what is kept.

    Args:
      theta: what was evaluated.
      mean: return; NaN, of broken episodes, is never the best.
      steps: environment steps of one agent that it had learned from.
      confirmed: whether it was played again to know.
    """
    rank = (confirmed, float(mean), steps)
    if self._path is None or np.isnan(mean) or rank < self._rank:
      return
    with pulse.survives(checkpoints.BEST):
      checkpoints.write(
        self._path, theta=theta, return_mean=mean, steps=steps,
        confirmed=confirmed,
      )  # fmt: skip
      self._rank = rank


class Judge:
  """Plays greedy episodes, keeps the best parameters, ends a run at its goal.

  Attributes:
    played_at: steps of a member at the run's last evaluation, also before it
      was resumed; -1 if there was none.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    agent: base.Agent,
    reporter: reporting.Reporter,
    members: int = 1,
    ends_run: bool = True,
  ):
    """Plays nothing yet.

    Args:
      experiment: what is run.
      agent: whose parameters are played.
      reporter: of the node; rows go there.
      members: P, that are played each time.
      ends_run: whether it ends the run when `run.target_return` is confirmed.
    """
    self._experiment = experiment
    self._agent = agent
    self._reporter = reporter
    self._target = experiment.run.target_return if ends_run else None
    directory = experiment.run_dir
    # Of several members, who is best is said by their last evaluation.
    self._best = Best(directory if members == 1 else None)
    rows: list[dict[str, Any]] = []
    if directory is not None:
      rows = run_directory.RunDirectory(directory).metrics('evaluation')
    steps = [int(row['actor_steps_per_member']) for row in rows]
    self.played_at = max(steps, default=-1)

  def play(
    self,
    thetas: np.ndarray,
    steps: int,
    should_stop: Callable[[], bool],
    more: Callable[[list[float]], dict[str, Any]],
  ) -> bool:
    """Plays `run.eval_episodes` with each member. Returns False if stopped.

    Args:
      thetas: parameters [P, D].
      steps: environment steps of a member that made them.
      should_stop: asked at each step; ends it without a row.
      more: given the mean return of each member, what else is in the row.
    """
    run = self._experiment.run
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

  def _confirm(
    self,
    thetas: np.ndarray,
    steps: int,
    target: float,
    should_stop: Callable[[], bool],
  ) -> None:
    """Ends the run if each member holds the target over more episodes."""
    # The best of many evaluations is partly luck: played again, and longer.
    count = _CONFIRMATION_EPISODES
    results = self._play(thetas, count, f'confirmation at {steps}', should_stop)
    if results is None:
      return
    least = float(np.min([result.mean for result in results]))
    if least >= target:
      self._best.offer(thetas[0], least, steps, confirmed=True)
      self._reporter.finish(
        f'greedy return {least:.1f} over {count} episodes, {target:g} was '
        'asked for',
        {'return_mean': least, 'episodes': count},
      )

  def _play(
    self,
    thetas: np.ndarray,
    count: int,
    purpose: str,
    should_stop: Callable[[], bool],
  ) -> list[evaluation.VectorResult] | None:
    """`count` greedy episodes of each member; None if told to stop."""
    experiment = self._experiment
    # The same environments for each member: fewer seeds to explain, and the
    # training environments' randomness is not touched.
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
        building=pulse.busy('building environments', _LONG_S),
      )
      if found is None:
        return None
      results.append(found)
    return results
