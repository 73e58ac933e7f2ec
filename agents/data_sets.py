"""Whether an agent can learn from a data set (replay/export.py)."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from murmuration.environment_loops import atari
from murmuration.replay import packing

_ROUNDING = 1e-4  # of actions that were mapped to [-1, 1]


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
      del wanted['reward_clip']  # launch/nodes/offline.py clips them
  for name, own in wanted.items():
    got = about.get(name)
    same = got == own
    if name == 'gamma' and isinstance(got, float):
      same = bool(np.isclose(got, own, rtol=1e-9))
    if not same:
      change = 'Choose the agent and environment that wrote it.'
      if name != 'layout':
        change = f'Its sums are made: set --config.agent.{name}={got}.'
        if name not in about and name != 'reward_clip':
          change = f'Its `about` does not say {name}: add it there.'
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


def check_rows(
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
  within = (fields['d_t'] >= 0) & (fields['d_t'] <= 1)
  advice = (
    'Give 0 where an episode has terminated, else gamma^(n-1), which is 1 for '
    'n_step=1: the learner multiplies by gamma once more.'
  )
  require('d_t', within, 'a discount lies in [0, 1]', advice)
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
