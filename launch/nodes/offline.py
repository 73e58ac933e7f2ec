"""A worker that learns from a data set, in the loop of worker.py."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from agents import base
from launch import experience
from launch import experiment as experiment_lib
from launch.experience import kind
from launch.nodes import worker
from replay import export
from replay import packing


class Worker(worker.Worker):
  """Learns until it has made the updates of its budget."""

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    node: str,
    counter: Any,
    data: str,
  ):
    """Reads the data.

    Args:
      experiment: what to run.
      node: name of this node.
      counter: client of the counter.
      data: path of the data set.
    """
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

  def over(self) -> bool:
    return super().over() or self._updates >= self._budget


def updates(experiment: experiment_lib.Experiment) -> int:
  """Those of a run of `run.steps_per_agent` steps at its pace; whole calls."""
  agent, run = experiment.make_agent(), experiment.run
  per_update = experiment.pace.steps_per_update(agent.batch_size)
  calls = round(run.steps_per_agent / per_update / run.updates_per_call)
  return max(1, calls) * run.updates_per_call


def of_data(
  experiment: experiment_lib.Experiment, path: pathlib.Path
) -> kind.Local:
  """A data set as the replay of one member, all of it there.

  Raises:
    ValueError: it is of another task or agent.
  """
  rows, priorities, about = export.load(path)
  check(experiment.make_agent(), about, path)
  found = experience.of_members(
    dataclasses.replace(experiment, max_replay_size=len(rows)), 1
  )
  found.keep_order(base.actor_seed(experiment.actor_info(0), 'data'))
  (ring,) = found.rings
  ring.extend(rows, priorities.tolist())
  return found


def check(agent: Any, about: dict[str, Any], path: pathlib.Path) -> None:
  """Refuses a data set that this agent cannot learn from.

  Raises:
    ValueError: with what each of them has.
  """
  layout: packing.TransitionLayout = agent.transition_layout()
  wanted = {
    'layout': layout.name,
    'n_step': agent.n_step,
    'gamma': agent.gamma,
  }
  for name, own in wanted.items():
    got = about.get(name)
    same = got == own
    if isinstance(got, float):
      same = bool(np.isclose(got, own, rtol=1e-9))
    if name == 'gamma' and agent.n_step == 1:
      continue  # sums of one reward have none
    if not same:
      change = 'Choose the agent and environment that wrote it.'
      if name != 'layout':
        change = f'Its sums are made: set --config.agent.{name}={got}.'
      raise ValueError(
        f'{path} has {name}={got}, but {agent.name} on {agent.spec.name} '
        f'needs {own}. {change}'
      )
