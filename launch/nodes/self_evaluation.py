"""A worker that measures its own members, in the loop in which they learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agents import base
from environment_loops import evaluation
from launch import experiment as experiment_lib
from launch import pulse
from launch.nodes import best
from launch.nodes import evaluator
from launch.nodes import saves
from run_records import checkpoints
from run_records import reporting
from run_records import run_directory


class SelfEvaluation:
  """Plays greedy episodes with each member whenever that is due."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    agent: base.Agent,
    members: Sequence[base.ActorInfo],
    reporter: reporting.Reporter,
    should_stop: Callable[[], bool],
  ):
    """Plays nothing yet.

    Args:
      experiment: what is run.
      agent: that the members are.
      members: P.
      reporter: of the worker.
      should_stop: ends an evaluation.
    """
    self._experiment = experiment
    self._agent = agent
    self._first = members[0]
    self._reporter = reporter
    self._should_stop = should_stop
    self._next: int | None = None
    self._played_at = _last(experiment.run_dir)
    # Of several members, who is best is said by their last evaluation.
    self._best = best.Best(experiment.run_dir if len(members) == 1 else None)

  def _after(self, steps: int) -> int:
    period = self._experiment.eval_period
    return (steps // period + 1) * period

  def now_and_then(self, theta: np.ndarray, steps: int) -> None:
    """Plays `theta [P, D]` after so many steps of a member, if it is due."""
    if self._next is None:
      # A resumed run does not play again what it ended with.
      self._next = self._after(steps - (steps != self._played_at))
    if steps >= self._next:
      self._next = self._after(steps)
      self._play(theta, steps)

  def last(self, theta: np.ndarray, steps: int) -> None:
    """What the run came to is played too, unless it has been."""
    if self._played_at != steps:
      self._play(theta, steps)

  def _over(self) -> bool:
    pulse.worked(moved=True)  # the run waits for these steps too
    return self._should_stop()

  def _play(self, thetas: np.ndarray, steps: int) -> None:
    run = self._experiment.run
    results = self._episodes(
      thetas, run.eval_episodes, f'evaluation at {steps}'
    )
    if results is None:
      return
    self._played_at = steps
    means = [result.mean for result in results]
    self._reporter.log(
      'evaluation',
      {
        'actor_steps': steps * len(thetas),
        'actor_steps_per_member': steps,
        'return_mean': float(np.mean(means)),
        'return_std': float(np.std(means)),
        'returns': [float(r) for result in results for r in result.returns],
        'member_returns': means,
        'broken_episodes': sum(result.broken for result in results),
      },
    )
    self._best.offer(thetas[0], means[0], steps)
    with pulse.survives(checkpoints.AGENTS):
      saves.write_acting(self._experiment.run_dir, thetas, steps)
    if run.target_return is not None and np.min(means) >= run.target_return:
      self._confirm(thetas, steps, run.target_return)

  def _confirm(self, thetas: np.ndarray, steps: int, target: float) -> None:
    """Ends the run if each member holds the target over more episodes."""
    count = evaluator.CONFIRMATION_EPISODES
    results = self._episodes(thetas, count, f'confirmation at {steps}')
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

  def _episodes(
    self, thetas: np.ndarray, count: int, purpose: str
  ) -> list[evaluation.VectorResult] | None:
    """`count` greedy episodes of each member; None if told to stop."""
    # The same environments for each member: fewer seeds to explain, and the
    # training environments' randomness is not touched.
    seed = base.actor_seed(self._first, purpose)
    results = []
    for theta in thetas:
      found = evaluator.play(
        self._experiment, self._agent.greedy(theta), count, seed, self._over
      )
      if found is None:
        return None
      results.append(found)
    return results


def _last(run_dir: str | None) -> int:
  """Steps of a member at the run's last evaluation, or -1."""
  if run_dir is None:
    return -1
  rows = run_directory.RunDirectory(run_dir).metrics('evaluation')
  return int(rows[-1]['actor_steps_per_member']) if rows else -1
