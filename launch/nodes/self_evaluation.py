"""A worker's evaluation of its own members, in its learning loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agents import base
from launch import experiment as experiment_lib
from launch import pulse
from launch.nodes import best
from launch.nodes import saves
from run_records import checkpoints
from run_records import reporting


class SelfEvaluation:
  """Plays greedy episodes with each member every `eval_period` steps."""

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
    self._judge = best.Judge(experiment, agent, reporter, len(members))

  def _after(self, steps: int) -> int:
    period = self._experiment.eval_period
    return (steps // period + 1) * period

  def now_and_then(self, theta: np.ndarray, steps: int) -> None:
    """Evaluates `theta [P, D]` if that is due after `steps` of a member."""
    if self._next is None:
      # A resumed run does not repeat the evaluation that it ended with.
      self._next = self._after(steps - (steps != self._judge.played_at))
    if steps >= self._next:
      self._next = self._after(steps)
      self._play(theta, steps)

  def last(self, theta: np.ndarray, steps: int) -> None:
    """Evaluates the final parameters, unless that has been done."""
    if self._judge.played_at != steps:
      self._play(theta, steps)

  def _over(self) -> bool:
    pulse.worked(moved=True)  # The run waits for evaluation steps too.
    return self._should_stop()

  def _play(self, thetas: np.ndarray, steps: int) -> None:
    played = self._judge.play(
      thetas, steps, self._over, lambda means: {'member_returns': means}
    )
    if played:
      with pulse.survives(checkpoints.AGENTS):
        saves.write_acting(self._experiment.run_dir, thetas, steps)
