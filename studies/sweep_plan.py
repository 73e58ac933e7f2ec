"""Plans a sweep: its trials, runs and rounds, before any run is made."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
import re
from typing import Any

from murmuration import choices
from murmuration.launch import cell as cell_lib
from murmuration.launch import engines
from murmuration.launch import registry
from murmuration.launch import session
from murmuration.replay import isolation
from murmuration.run_records import jsonable
from murmuration.run_records import names
from murmuration.run_records import run_directory
from murmuration.studies import plan as study_plan
from murmuration.studies import runs as study_runs
from murmuration.studies import search

HOW = 'grid', 'random'
STEPS = 'run.steps_per_agent'
# What is no setting, and is said by a flag.
_OTHERS = {
  'seed': 'Each trial has the seeds 0 to N - 1 of --seeds=N.',
  'steps': 'Each trial has --steps=N.',
  'environment': 'A sweep has one: --config.environment=ID.',
  'topology': 'A sweep has one: --topology=NAME.',
}
_SPACE = re.compile(r'[A-Za-z]\w*(\.\w+)?=.*')


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The plan of a sweep.

  Attributes:
    directory: of its runs and tables.
    flags: of every run: agent, topology, engine, fixed settings.
    trials: tried settings by name, a hash of all settings except the steps.
    seeds: runs of each trial: seeds 0 to seeds - 1.
    steps: environment steps of each agent.
    environment: gymnasium id.
  """

  directory: pathlib.Path
  flags: tuple[str, ...]
  trials: Mapping[str, search.Trial]
  seeds: int
  steps: int
  environment: str

  def label(self, name: str) -> str:
    """The settings that a trial changes, for display."""
    changed = self.trials[name].items()
    return ', '.join(f'{k.partition(".")[2]}={v}' for k, v in changed)

  def job(self, name: str, seed: int) -> study_plan.Job:
    """The run of a trial with a seed."""
    changed = {**self.trials[name], STEPS: str(self.steps)}
    return study_plan.Job(
      study=self.directory.name,
      variant=name,
      seeds=(seed,),
      path=self.directory / 'runs' / f'{name}-{seed}',
      script=session.root() / 'launch' / 'run.py',
      arguments=(*self.flags, *as_flags(changed), f'--seed={seed}'),
      budget=self.steps,
      stage=f'.{self.steps}',
      resumes=True,
    )

  def jobs(self) -> list[study_plan.Job]:
    """Jobs seed by seed: other load on the machine then affects all alike."""
    return [
      self.job(name, seed) for seed in range(self.seeds) for name in self.trials
    ]


def plan(
  args: argparse.Namespace,
  spaces: Mapping[str, search.Space],
  fixed: Mapping[str, str],
) -> Sweep:
  """Plans all runs; checks each trial as its run would check it.

  Args:
    spaces: what to try, by setting.
    fixed: texts of settings that stay, by section.name.

  Raises:
    ValueError: a name, a setting or a combination is invalid.
  """
  names.require('engine', args.lp_launch_type, engines.NAMES)
  if args.ray_address and args.lp_launch_type != 'ray':
    raise ValueError(
      f'--ray_address is for --lp_launch_type=ray, not {args.lp_launch_type}.'
    )
  names.require('way to isolate', args.isolate, isolation.MODES)
  names.require('kind of sweep', args.how, HOW)
  if args.how == 'grid' and args.trials is not None:
    raise ValueError('--trials is for random: a grid has them all.')
  if not spaces:
    raise ValueError('nothing is to be tried: add SETTING=VALUE,VALUE.')
  name, preset = registry.split(args.agent)

  def resolve(changed: Mapping[str, str]) -> cell_lib.Cell:
    return cell_lib.resolve(name, preset, args.topology, {**fixed, **changed})

  # Without a target, so that all runs use the same number of steps.
  stays = {'run.target_return': 'None', **fixed}
  base = resolve({})
  if args.steps is not None:
    budget = {'run.steps_per_agent': str(args.steps)}
    stays = {**budget, **cell_lib.falling(base, budget), **stays}
  steps = args.steps or base.sections['run'].steps_per_agent
  classes = cell_lib.classes(base.agent, base.topology)
  full: dict[str, search.Space] = {}
  for key, space in spaces.items():
    (whole,) = choices.named({key: ''}, classes, _OTHERS)
    if whole in full:
      raise ValueError(f'{whole} is there twice: give all values in one word.')
    full[whole] = space
  for key in (*full, *(fixed if args.steps is not None else ())):
    if key == STEPS:
      raise ValueError(f'{STEPS} is what --steps says. Leave it out.')
  for key in full:
    if key in fixed:
      raise ValueError(f'{key} is both tried and fixed. Leave one out.')
  if args.how == 'grid':
    found = search.grid(full)
  else:
    found = search.draw(full, args.trials or 9, args.draw_seed)
  found = _effective(found, lambda trial: resolve({**stays, **trial}))
  trials: dict[str, search.Trial] = {}
  config = {}
  for trial in found:
    cell = resolve({**stays, **trial, STEPS: str(steps)})
    cell.build()
    config = jsonable.decode(jsonable.encode(cell.config))
    config['run'].pop('steps_per_agent')
    own = study_runs.digest(config)[:8]
    if own in trials:
      both = (' '.join(as_flags(one)) for one in (trials[own], trial))
      raise ValueError(f'{" and ".join(both)} are the same. Leave one out.')
    trials[own] = trial
  stays.pop(STEPS, None)
  topology = (f'--topology={args.topology}',) if args.topology else ()
  ray = (f'--ray_address={args.ray_address}',) if args.ray_address else ()
  default = run_directory.default_name(name, config['environment'])
  return Sweep(
    args.dir or pathlib.Path('runs') / f'sweep-{default}',
    (
      args.agent,
      *topology,
      f'--lp_launch_type={args.lp_launch_type}',
      *ray,
      f'--isolate={args.isolate}',
      *as_flags(stays),
    ),
    trials,
    args.seeds,
    steps,
    config['environment'],
  )


def _effective(
  trials: Sequence[search.Trial], resolve: Callable[[search.Trial], Any]
) -> list[search.Trial]:
  """The trials without settings that change nothing beside their others.

  So `prioritized=False,True priority_exponent=0.4,0.6` are three.

  Raises:
    launch.cell.Unused: of a setting that changes nothing in any of them.
  """
  found: dict[tuple, search.Trial] = {}
  unused: dict[str, cell_lib.Unused] = {}
  for trial in trials:
    while True:
      try:
        resolve(trial)
        break
      except cell_lib.Unused as e:
        if e.key not in trial:
          raise
        unused[e.key] = e
        trial = {key: text for key, text in trial.items() if key != e.key}
    found[tuple(trial.items())] = trial
  for key, error in unused.items():
    if not any(key in trial for trial in found.values()):
      raise error
  return list(found.values())


def spaces(
  argv: Sequence[str],
) -> tuple[dict[str, search.Space], list[str]]:
  """Spaces by setting from the words SETTING=VALUES, and the other words.

  Raises:
    ValueError: values are invalid, or a setting is given twice.
  """
  found: dict[str, search.Space] = {}
  rest = []
  for word in argv:
    if not _SPACE.fullmatch(word):
      rest.append(word)
      continue
    name, _, text = word.partition('=')
    if name in found:
      raise ValueError(f'{name} is there twice: give all values in one word.')
    found[name] = search.parse(name, text)
  return found, rest


def as_flags(changed: Mapping[str, str]) -> list[str]:
  return [f'--config.{name}={value}' for name, value in changed.items()]
