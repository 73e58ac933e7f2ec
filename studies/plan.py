"""What a study is: systems on one task, with one budget and the same seeds.

Studies are listed in studies/declared.py; studies/results.py runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import re

from run_records import learning_statistics as statistics

STEPS = 'env steps'
SECONDS = 'seconds'
_X_AXES = ((STEPS,), (STEPS, SECONDS))
_LAUNCH = pathlib.Path(__file__).resolve().parents[1] / 'launch'


@dataclasses.dataclass(frozen=True)
class Variant:
  """One system of a study: what is run for each seed.

  Attributes:
    flags: AGENT:PRESET and what follows it. The study adds budget, seed and
      directory.
    together: all seeds are members of one process, single_process, instead of
      a process each.
    budget: environment steps of each agent where the study's own would take
      too long; less than those. Differences in area are then over these.
    best_of: each seed is a process with so many independent agents
      (single.num_agents), and whoever is best at an evaluation counts: see
      curves.of_best_member. 0: not so.
    shared_by: agents that share the budget of one: each takes its part of it,
      and curves are by the steps of all of them together.
    script: a file in launch/, or the path of another, absolute or from there,
      that takes --run_dir, --seed, --config.run.* and --print-config.
  """

  flags: tuple[str, ...]
  together: bool = False
  budget: int | None = None
  best_of: int = 0
  shared_by: int = 1
  script: str = 'run.py'

  def __post_init__(self):
    if self.together and self.best_of:
      raise ValueError(
        f'together=True makes a seed of each agent of a process, '
        f'best_of={self.best_of} one of all. Give one of them.'
      )
    if self.shared_by < 1 or (self.shared_by > 1 and self.together):
      raise ValueError(
        f'shared_by={self.shared_by} must be at least 1, and 1 with '
        'together=True, whose agents are a seed each.'
      )


@dataclasses.dataclass(frozen=True)
class Goal:
  """Acceptance: enough seeds end with a good policy.

  Attributes:
    variant: label of the system that has to reach it.
    last_three: return that the mean of the last three evaluations must have.
    reached: seeds that must reach it,
    seeds: of so many. With another number of seeds it is not judged.
  """

  variant: str
  last_three: float
  reached: int
  seeds: int


@dataclasses.dataclass(frozen=True)
class Contrast:
  """A difference that is asked for besides those from the baseline."""

  name: str
  variant: str
  against: str


@dataclasses.dataclass(frozen=True)
class Study:
  """Systems that are compared by the rules of learning_statistics.py.

  Attributes:
    name: of its directory in docs/results/.
    environment: gymnasium id; its returns must be in REFERENCES.
    budget: environment steps of each agent.
    threshold: mean return that counts as solved.
    seeds: runs of each variant: seeds 0 to seeds - 1.
    variants: label to system, in the order of the table.
    baseline: label that the differences are from.
    x_axes: ('env steps',) or ('env steps', 'seconds'). With seconds the runs
      are made one at a time, and a second table compares at equal wall-clock.
    goals: what is accepted.
    contrasts: further differences.
  """

  name: str
  environment: str
  budget: int
  threshold: float
  seeds: int
  variants: Mapping[str, Variant]
  baseline: str
  x_axes: tuple[str, ...] = (STEPS,)
  goals: tuple[Goal, ...] = ()
  contrasts: tuple[Contrast, ...] = ()

  def __post_init__(self):
    where = f'study {self.name!r}:'
    if not re.fullmatch(r'[a-z0-9_]+', self.name):
      raise ValueError(
        f'{where} the name is that of a directory: use a-z, 0-9 and _.'
      )
    if self.environment not in statistics.REFERENCES:
      raise ValueError(
        f'{where} a crashed run counts as a random policy, and the return of '
        f'one on {self.environment} is not known. Measure it and add it to '
        'REFERENCES in run_records/learning_statistics.py.'
      )
    if self.budget < 1 or self.seeds < 1:
      raise ValueError(
        f'{where} budget={self.budget} and seeds={self.seeds} must be at '
        'least 1.'
      )
    if self.x_axes not in _X_AXES:
      raise ValueError(
        f'{where} x_axes={self.x_axes} is not known. Choose one of {_X_AXES}.'
      )
    named = [self.baseline, *(g.variant for g in self.goals)]
    for contrast in self.contrasts:
      named += [contrast.variant, contrast.against]
    for label in named:
      if label not in self.variants:
        raise ValueError(
          f'{where} there is no variant {label!r}; there are '
          f'{list(self.variants)}.'
        )
    for label in self.variants:
      if not 1 <= self.budget_of(label) <= self.budget:
        raise ValueError(
          f'{where} {label!r} has a budget of {self.budget_of(label)} steps; '
          f"it must be from 1 to the study's, {self.budget}."
        )
    slugs = {slug(label) for label in self.variants}
    if len(slugs) < len(self.variants):
      raise ValueError(
        f'{where} two labels of {list(self.variants)} give one directory '
        'name. Let them differ in letters or digits.'
      )
    if self.timed and any(v.together for v in self.variants.values()):
      raise ValueError(
        f'{where} a variant whose seeds share a process has no seconds of one '
        "seed. Leave out together=True or 'seconds'."
      )

  def budget_of(self, label: str) -> int:
    """Environment steps of each agent of a variant."""
    own = self.variants[label].budget
    return self.budget if own is None else own

  @property
  def timed(self) -> bool:
    """Whether systems are also compared at equal wall-clock."""
    return SECONDS in self.x_axes

  @property
  def reference(self) -> statistics.Reference:
    """The random return and the study's own threshold."""
    found = statistics.REFERENCES[self.environment]
    return found._replace(threshold=self.threshold)

  def only(self, labels: Sequence[str]) -> Study:
    """The same study of the baseline and these variants.

    Raises:
      ValueError: no such variant.
    """
    unknown = [label for label in labels if label not in self.variants]
    if unknown:
      raise ValueError(
        f'study {self.name!r} has no variant {unknown[0]!r}; there are '
        f'{list(self.variants)}.'
      )
    kept = {self.baseline, *labels}
    return dataclasses.replace(
      self,
      variants={k: v for k, v in self.variants.items() if k in kept},
      goals=tuple(g for g in self.goals if g.variant in kept),
      contrasts=tuple(
        c for c in self.contrasts if {c.variant, c.against} <= kept
      ),
    )


def solves(
  name: str,
  agent: str,
  label: str,
  environment: str,
  budget: int,
  threshold: float,
  seeds: int,
  reached: int | None = None,
) -> Study:
  """One system alone: does it reach the threshold in every seed?"""
  return Study(
    name=name,
    environment=environment,
    budget=budget,
    threshold=threshold,
    seeds=seeds,
    variants={label: Variant((agent,))},
    baseline=label,
    goals=(Goal(label, threshold, reached=reached or seeds, seeds=seeds),),
  )


@dataclasses.dataclass(frozen=True)
class Job:
  """One process of a study.

  Attributes:
    study: its name.
    variant: label of the system.
    seeds: that it makes: one, or all of them together.
    path: run directory.
    script: file that is run.
    arguments: of the script, without the run directory.
    budget: environment steps of each agent.
    shared_by: of the variant.
    stage: of the record's name, where a run goes on after its record.
    resumes: whether what is in the directory goes on; else it is made anew.
  """

  study: str
  variant: str
  seeds: tuple[int, ...]
  path: pathlib.Path
  script: pathlib.Path
  arguments: tuple[str, ...]
  budget: int
  shared_by: int = 1
  stage: str = ''
  resumes: bool = False

  @property
  def log(self) -> pathlib.Path:
    """What the process printed."""
    return self.path.with_name(f'{self.path.name}.log')

  @property
  def begun(self) -> bool:
    """Whether the program got as far as its run directory."""
    return (self.path / 'config.json').is_file()

  @property
  def record(self) -> pathlib.Path:
    """How it ended; only there when it has."""
    return self.path.with_name(f'{self.path.name}{self.stage}.json')


def jobs(study: Study, directory: pathlib.Path) -> list[Job]:
  """All processes of a study, seed by seed.

  Systems take turns, so that what else the machine does in these hours meets
  all of them alike.

  Args:
    study: what is run.
    directory: of the runs.
  """
  found, seeds = [], study.seeds
  for seed in range(seeds):
    for label, variant in study.variants.items():
      if variant.together and seed:
        continue
      name = f'{slug(label)}-{seed}'
      own: tuple[int, ...] = (seed,)
      if variant.together:
        # Its number in the name: more seeds later are another process.
        name, own = f'{slug(label)}-of-{seeds}', tuple(range(seeds))
      found.append(
        Job(
          study.name,
          label,
          own,
          directory / name,
          _LAUNCH / variant.script,
          (*arguments(study, label), f'--seed={seed}'),
          study.budget_of(label),
          variant.shared_by,
        )
      )
  return found


def arguments(study: Study, label: str) -> tuple[str, ...]:
  """Flags of a variant, all but those of one run."""
  variant = study.variants[label]
  agents = study.seeds if variant.together else variant.best_of
  return (
    *variant.flags,
    *((f'--config.single.num_agents={agents}',) if agents else ()),
    '--config.run.steps_per_agent='
    f'{study.budget_of(label) // variant.shared_by}',
    # Whole budgets: a run that stops at its goal has no area to compare.
    '--config.run.target_return=None',
  )


def slug(label: str) -> str:
  """'PSO-DQN, c = 0' as 'pso-dqn-c-0'."""
  return re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')
