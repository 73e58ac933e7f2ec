"""What a sweep tries: spaces of settings, and trials of them, checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import math
import pathlib
import re
from typing import Any, NamedTuple

from murmuration import choices
from murmuration import jobs
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import jsonable
from murmuration.run_records import run_directory

# Flags of every run, as of `murmuration run`.
OF_RUN = 'topology', 'lp_launch_type', 'ray_address', 'isolate', 'sink'
_BUDGET = 'run.steps_per_agent'
# What is no setting, and is said by a flag.
_OTHERS = {
  'seed': 'Each trial has the seeds 0 to N - 1 of --seeds=N.',
  'steps': 'Each trial has --steps=N.',
  'environment': 'A sweep has one: --config.environment=ID.',
  'topology': 'A sweep has one: --topology=NAME.',
}


class Trial(NamedTuple):
  """Settings that are tried together, without those that change nothing.

  `name` is a hash of all settings of its runs except the seed.
  """

  name: str
  settings: dict[str, str]

  @property
  def label(self) -> str:
    pairs = self.settings.items()
    return ', '.join(f'{key.partition(".")[2]}={text}' for key, text in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(jobs.Job):
  """The run of a trial with a seed."""

  trial: Trial = dataclasses.field(compare=False)
  seed: int


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The plan of a sweep.

  Attributes:
    args: flags of the command.
    directory: of its runs and tables.
    flags: of every run: agent, topology, engine, fixed settings.
    spaces: Optuna's distributions of what is tried, by section.name.
    environment: gymnasium id or module:Name.
    steps: environment steps of each agent.
    evaluations: of each run.
    resolve: returns the cell of changed settings.
  """

  args: argparse.Namespace
  directory: pathlib.Path
  flags: tuple[str, ...]
  spaces: dict[str, Any]
  environment: str
  steps: int
  evaluations: int
  resolve: Callable[[Mapping[str, str]], cell_lib.Cell]

  def trial(self, chosen: Mapping[str, Any]) -> Trial:
    """The trial of these values; ValueError says why it cannot be run."""
    kept = {key: _text(value) for key, value in chosen.items()}
    while True:
      try:
        cell = self.resolve(kept)
        break
      except cell_lib.Unused as e:
        if kept.pop(e.key, None) is None:
          raise
    cell.build()
    return Trial(_digest(cell)[:8], kept)

  def digest(self) -> str:
    """A hash of all that has a part in what is tried, and how."""
    args = self.args
    own = [args.how, args.draw_seed, args.seeds, args.prune, str(self.spaces)]
    own += [*self.flags, _digest(self.resolve({}))]
    return jobs.digest({'own': own})

  def combinations(self) -> list[dict[str, Any]]:
    """All of a grid; the last setting varies fastest."""
    values = (space.choices for space in self.spaces.values())
    return [dict(zip(self.spaces, row)) for row in itertools.product(*values)]

  def checked(self) -> list[Trial]:
    """A grid's trials; of other sweeps each value and end of a range once.

    Raises:
      ValueError: one cannot be run, two are the same, or a setting changes
        nothing in any of them.
    """
    tried = self.combinations() if self.args.how == 'grid' else self._ends()
    found: dict[str, Trial] = {}
    for trial in map(self.trial, tried):
      other = found.setdefault(trial.name, trial)
      if other != trial and self.args.how == 'grid':
        raise ValueError(
          f'{other.label} and {trial.label} are the same. Leave one out.'
        )
    if {*self.spaces}.difference(*(t.settings for t in found.values())):
      self.resolve({key: _text(value) for key, value in tried[0].items()})
    return list(found.values())

  def _ends(self) -> list[dict[str, Any]]:
    ends = {
      key: getattr(space, 'choices', None) or (space.low, space.high)
      for key, space in self.spaces.items()
    }
    usual = {key: values[0] for key, values in ends.items()}
    return [{**usual, key: x} for key, values in ends.items() for x in values]

  def jobs(self, trial: Trial) -> list[Job]:
    changed = as_flags(trial.settings)
    return [
      Job(
        path=self.directory / 'runs' / f'{trial.name}-{seed}',
        arguments=(*self.flags, *changed, f'--seed={seed}'),
        resumes=True,
        trial=trial,
        seed=seed,
      )
      for seed in range(self.args.seeds)
    ]


def plan(
  args: argparse.Namespace, tried: Sequence[str], fixed: Mapping[str, str]
) -> Sweep:
  """Plans a sweep.

  Args:
    args: flags of the command.
    tried: words SETTING=VALUES.
    fixed: settings that stay, by section.name.

  Raises:
    ValueError: a name, a setting or its values are invalid.
  """
  if not tried:
    raise ValueError('nothing is to be tried: add SETTING=VALUE,VALUE.')
  name, preset = registry.split(args.agent)
  # Without a target, so that all runs use the same number of steps.
  stays = {'run.target_return': 'None', **fixed}
  base = cell_lib.resolve(name, preset, args.topology, stays)
  taken = {_BUDGET, *fixed}
  if args.steps is not None:
    if _BUDGET in fixed:
      raise ValueError(f'{_BUDGET} is what --steps says. Leave one out.')
    budget = {_BUDGET: str(args.steps)}
    stays = {**cell_lib.falling(base, budget), **stays, **budget}
  classes = cell_lib.classes(base.agent, base.topology)
  spaces: dict[str, Any] = {}
  for word in tried:
    key, _, text = word.partition('=')
    (whole,) = choices.named({key: ''}, classes, _OTHERS)
    if whole in taken:
      raise ValueError(f'{whole} is there twice, or said by a flag.')
    taken.add(whole)
    spaces[whole] = space(word, text)
    if args.how == 'grid' and not hasattr(spaces[whole], 'choices'):
      raise ValueError(
        f'{word} is a range, and a grid needs values between commas. Give '
        'those, or --how=random or tpe.'
      )
  environment, run = base.config['environment'], base.sections['run']
  given = [(name, getattr(args, name)) for name in OF_RUN]
  flags = [f'--{name}={value}' for name, value in given if value is not None]
  default = f'sweep-{run_directory.default_name(name, environment)}'
  return Sweep(
    args,
    args.dir or pathlib.Path('runs') / default,
    (args.agent, *flags, *as_flags(stays)),
    spaces,
    environment,
    args.steps or run.steps_per_agent,
    run.evaluations,
    lambda changed: cell_lib.resolve(
      name, preset, args.topology, {**stays, **changed}
    ),
  )


def space(word: str, text: str) -> Any:
  """Optuna's distribution of the values of a word SETTING=VALUES.

  `text` is '1e-3,3e-4', in which commas within brackets do not separate, or
  'log(1e-4,1e-2)', 'uniform(0.9,1)', 'int(1,8)'.

  Raises:
    ValueError: it is neither.
  """
  from optuna import distributions

  found = re.fullmatch(r'(uniform|log|int)\((.*)\)', text)
  if found is None:
    values = tuple(_split(text))
    if '' in values or len({*values}) < len(values):
      raise ValueError(f'{word}: values stand between commas, each once.')
    return distributions.CategoricalDistribution(values)
  kind, ends = found.groups()
  try:
    low, high = map(int if kind == 'int' else float, ends.split(','))
    if not -math.inf < low < high < math.inf:
      raise ValueError
    if kind == 'int':
      return distributions.IntDistribution(int(low), int(high))
    return distributions.FloatDistribution(low, high, log=kind == 'log')
  except ValueError:
    raise ValueError(
      f'{word}: {kind}(LOW,HIGH) needs two numbers, LOW below HIGH; whole ones '
      'for int, and above 0 for log.'
    ) from None


def _split(text: str) -> list[str]:
  """Splits at commas that are not within brackets."""
  words, depth = [''], 0
  for letter in text:
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      words.append('')
    else:
      words[-1] += letter
  return [word.strip() for word in words]


def _text(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def _digest(cell: cell_lib.Cell) -> str:
  return jobs.digest(jsonable.decode(jsonable.encode(cell.config)))


def as_flags(settings: Mapping[str, str]) -> list[str]:
  return [f'--config.{name}={text}' for name, text in settings.items()]
