"""A worker that learns from a data set, in the loop of worker.py."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from agents import base
from environment_loops import atari
from launch import experience
from launch import experiment as experiment_lib
from launch.experience import kind
from launch.nodes import worker
from replay import export
from replay import packing

_ROUNDING = 1e-4  # of actions that were mapped to [-1, 1]


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
    ValueError: it is of another task or agent, or nothing to learn from.
  """
  rows, priorities, about = export.load(path)
  agent = experiment.make_agent()
  check(agent, about, path)
  _check_rows(agent, rows, priorities, path)
  clip = agent.reward_clip
  if clip is not None and about.get('reward_clip') is None:
    # Single rewards, as they came: see `check`.
    layout = agent.transition_layout()
    fields = layout.unpack(rows)
    fields = fields._replace(r_t=np.clip(fields.r_t, -clip, clip))
    rows = layout.pack(**fields._asdict())
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
    'reward_clip': agent.reward_clip,
  }
  if agent.n_step == 1:
    del wanted['gamma']  # sums of one reward have none
    if about.get('reward_clip') is None:
      del wanted['reward_clip']  # `of_data` clips them
  for name, own in wanted.items():
    got = about.get(name)
    same = got == own
    if name == 'gamma' and isinstance(got, float):
      same = bool(np.isclose(got, own, rtol=1e-9))
    if not same:
      change = 'Choose the agent and environment that wrote it.'
      if name != 'layout':
        change = f'Its sums are made: set --config.agent.{name}={got}.'
      raise ValueError(
        f'{path} has {name}={got}, but {agent.name} on {agent.spec.name} '
        f'needs {own}. {change}'
      )


def check_task(task: str, about: dict[str, Any], path: pathlib.Path) -> None:
  """Refuses a data set of another environment, where it names one.

  Tasks with the same shapes can be told apart by nothing else.

  Raises:
    ValueError: with both names.
  """
  got = about.get('environment') or task
  if not atari.same_task(got, task):
    raise ValueError(
      f'{path} is of environment={got}, not {task}. Set --config.environment='
      f'{got}, or, if both are the same task, --config.offline.environment='
      f'{got}.'
    )


def _check_rows(
  agent: Any, rows: np.ndarray, priorities: np.ndarray, path: pathlib.Path
) -> None:
  """Refuses numbers of which an agent would learn nothing, or wrong things.

  Those of an environment are checked where it is stepped, and nobody else
  looks at them between here and the loss.

  Raises:
    ValueError: with what is there, and what is needed.
  """
  if not len(rows):
    raise ValueError(
      f'{path} holds no transition, and at least one is needed. Export a run '
      'that has acted longer.'
    )
  if priorities.shape != (len(rows),) or not priorities.any():
    raise ValueError(
      f'{path} has {np.count_nonzero(priorities):,} priorities above 0 of '
      f'{priorities.size:,}, and {len(rows):,} rows. Give one for each row, '
      'not all of them 0, or leave the array out.'
    )
  # Actions as they were given: as integers their fractions would be cut off.
  layout = dataclasses.replace(agent.transition_layout(), discrete=False)
  fields = {**layout.unpack(rows)._asdict(), 'priority': priorities}

  def require(name: str, fits: np.ndarray, needed: str, advice: str) -> None:
    bad = np.argwhere(~fits)
    if len(bad):
      raise ValueError(
        f'{path} has {fields[name][tuple(bad[0])]:g} in {name} of row '
        f'{bad[0][0]} ({len(bad):,} such numbers in all), but {needed}. '
        f'{advice}'
      )

  for name, values in fields.items():
    if values.dtype.kind == 'f':
      why = 'all have to be finite: one NaN would reach every parameter'
      require(name, np.isfinite(values), why, 'Leave these rows out.')
  advice = 'Give absolute temporal differences, or leave the array out.'
  require('priority', priorities >= 0, 'no priority is below 0', advice)
  actions, num = fields['a_tm1'], agent.spec.num_actions
  task = agent.spec.name
  if num is None:
    why = f'actions on {task} have to lie in [-1, 1], whatever its own bounds'
    advice = 'Map low to -1 and high to 1, or clip what is beyond.'
    require('a_tm1', np.abs(actions) <= 1 + _ROUNDING, why, advice)
  else:
    whole = (actions >= 0) & (actions < num) & (actions == np.floor(actions))
    why = f'actions on {task} are whole numbers from 0 to {num - 1}'
    require('a_tm1', whole, why, 'Count them from 0, in its order.')
