"""A worker that learns from a data set, in the loop of worker.py."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from murmuration.agents import base
from murmuration.agents import data_sets
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.experience import kind
from murmuration.launch.nodes import worker
from murmuration.replay import export


class Worker(worker.Worker):
  """Learns until it has made the updates of its budget."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    node: str,
    counter: Any,
    data: str,
  ):
    """Reads the data set at the path `data`."""
    info = experiment.actor_info(0)
    super().__init__(
      experiment,
      node,
      [info],
      counter,
      addresses=(),
      hosts=(),
      evaluates=True,
      given=of_data(experiment, pathlib.Path(data)),
    )
    self._budget = updates(experiment)

  @property
  def steps(self) -> int:
    """Environment steps in which a run would make as many updates."""
    per_update = self.experiment.pace.steps_per_update(self._agent.batch_size)
    return round(self._updates * per_update)

  def _build(self) -> None:
    super()._build()
    if self._updates:
      # Its own seed would draw again what the learner had from the start on.
      info = self.experiment.actor_info(0)
      for ring in self._experience.rings:
        ring.reseed(base.actor_seed(info, f'data from update {self._updates}'))
    before = self._reporter.before
    self._counted = self._updates
    if before is not None:
      sound = before.get('learner_steps', 0)
      self._counted = sound + before.get('skipped_updates', 0)
    # Of a killed run, the checkpoint may hold updates that it had not reported.
    self._count(0, 0)

  def _count(self, updates: int, skipped: int) -> None:
    """Counts updates, but not again those that are made again.

    So the budget is used when the learner, and what is kept of it, has as many,
    those that were skipped included.
    """
    self._updates += updates
    new = max(self._updates - self._counted, 0)
    self._counted += new
    samples = updates * self._experience.batch_size
    skipped = min(skipped, new)
    self._reporter.count(learner_steps=new - skipped, samples=samples)
    if skipped:
      self._reporter.count(skipped_updates=skipped)
    # Once the counter has all updates the run is over, also for who is started
    # again: by then they are kept.
    if updates and self._updates >= self._budget:
      self._save()

  def over(self) -> bool:
    return super().over() or self._updates >= self._budget


def updates(experiment: experiment_lib.Experiment) -> int:
  """Those of a run of `run.steps_per_agent` steps at its pace; whole calls."""
  agent, run = experiment.make_agent(), experiment.run
  per_update = experiment.pace.steps_per_update(agent.batch_size)
  calls = round(run.steps_per_agent / per_update / run.updates_per_call)
  return max(1, calls) * run.updates_per_call


def check(
  experiment: experiment_lib.Experiment, task: str, path: pathlib.Path
) -> None:
  """Refuses a data set of another agent, or of another environment."""
  about = export.about(path)
  data_sets.check(experiment.make_agent(), about, path)
  data_sets.check_task(task, about, path)


def of_data(
  experiment: experiment_lib.Experiment, path: pathlib.Path
) -> kind.Local:
  """A data set as the replay of one member, all of it there."""
  rows, priorities, about = export.load(path)
  agent = experiment.make_agent()
  data_sets.check(agent, about, path)
  data_sets.check_rows(agent, rows, priorities, path)
  clip = agent.reward_clip
  if clip is not None and about.get('reward_clip') is None:
    # Single rewards, as they came: see `data_sets.check`.
    layout = agent.transition_layout()
    fields = layout.unpack(rows)
    fields = fields._replace(r_t=np.clip(fields.r_t, -clip, clip))
    rows = layout.pack(**fields._asdict())
  found = experience.of_members(
    dataclasses.replace(experiment, max_replay_size=len(rows)), 1
  )
  found.use_rings(base.actor_seed(experiment.actor_info(0), 'data'))
  (ring,) = found.rings
  ring.extend(rows, priorities.tolist())
  return found
