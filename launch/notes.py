"""Notes for the user on a cell that is about to run."""

from __future__ import annotations

import math

from murmuration.launch import cell as cell_lib

_CLEARLY = 0.9  # share of the budget; rates that are 0 earlier get a note
_SUPPORT = ('agent.v_min', 'agent.v_max')


def of(cell: cell_lib.Cell) -> list[str]:
  """The notes, each of one or more sentences; most cells have none."""
  notes = _limit(cell), _rate(cell), _stretched(cell), _support(cell)
  return [note for note in notes if note]


def _limit(cell: cell_lib.Cell) -> str:
  limit = cell.experiment.eval_limit
  if limit is None:
    return ''
  run = cell.experiment.run
  budget = run.steps_per_agent
  said = (
    f'{cell.experiment.environment} has no step limit: its episodes may never '
    'end, and then training has no return to show. Evaluated episodes are cut '
    f'after {limit:,} steps (run.eval_max_steps).'
  )
  times = run.evaluations + 1  # one before the first step
  most = times * run.eval_episodes * limit
  if most > budget:
    said += (
      f' The {times} evaluations of {run.eval_episodes} episodes may take '
      f'{most:,} steps for an agent, where training has {budget:,}.'
    )
  return said


def _rate(cell: cell_lib.Cell) -> str:
  """On learning rates that reach 0 well before the end of the budget."""
  experiment = cell.experiment
  end = experiment.agent.rate_end
  if end is None or end.setting in cell.unused:
    return ''
  budget = experiment.run.steps_per_agent
  begin, per_unit = 0.0, 1.0  # environment steps per unit of the setting
  if not end.setting.endswith('_env_steps'):
    if 'pace' not in cell.sections or not experiment.pace.samples_per_insert:
      return ''  # acting and learning run at their own speeds
    if 'agent.min_replay_size' in cell.unused:
      return ''  # there are no actors
    # Each learner of a parameter server has its own replay.
    learners = getattr(cell.sections.get('server'), 'num_learners', 1)
    begin = learners * experiment.min_replay_size
    per_unit = experiment.pace.steps_per_update(experiment.agent.batch_size)
  zero = begin + end.value * per_unit
  if zero >= _CLEARLY * budget:
    return ''
  whole = math.ceil((budget - begin) / per_unit)
  flag = f'--config.{end.setting}'
  return (
    f'Learning rates fall to 0 by about environment step {zero:,.0f} of '
    f'{budget:,} ({end.setting}={end.value}), and nothing is learned '
    f'after it. {flag}={whole} lets them fall over the whole run, '
    f'{flag}=None keeps them.'
  )


def _stretched(cell: cell_lib.Cell) -> str:
  """On learning rates that rise again in a resumed run."""
  if cell.fell_over is None:
    return ''
  budget = cell.experiment.run.steps_per_agent
  return (
    f'Learning rates fall to 0 over the new budget of {budget:,} steps, no '
    f'longer over {cell.fell_over:,}, so they are higher now than where the '
    f'run was. --config.agent.anneal_env_steps={cell.fell_over} leaves them '
    'as they were.'
  )


def _support(cell: cell_lib.Cell) -> str:
  """On a critic's support that a preset chose for another task."""
  found = [name for name in _SUPPORT if name in cell.borrowed]
  if not found or set(found) & set(cell.unused):
    return ''
  said = ' and '.join(
    f'{name}={cell.config["agent"][name.partition(".")[2]]:g}' for name in found
  )
  return (
    f'{said}: the support of values is that of the preset, which is for '
    f'another task than {cell.experiment.environment}. Set '
    f'{" and ".join(f"--config.{name}" for name in _SUPPORT)} to the ends of '
    'its discounted returns, as they are scaled.'
  )
