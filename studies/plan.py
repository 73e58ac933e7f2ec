"""What a study is: systems on one task, with one budget and the same seeds.

Studies are listed in studies/declared.py; studies/results.py runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import re
from typing import Any

from murmuration import jobs as jobs_lib
from murmuration.launch import registry
from murmuration.run_records import learning_statistics as statistics


@dataclasses.dataclass(frozen=True)
class Variant:
  """One system of a study: what is run for each seed.

  Attributes:
    flags: AGENT:PRESET and flags; the study adds budget, seed and directory.
    together: whether all seeds are members of one single_process process,
      instead of one process each.
    budget: environment steps of each agent, if fewer than the study's, which
      would take too long. Differences in area then cover only these steps.
    best_of: if not 0, each seed is a process with this many independent agents
      (single.num_agents), and the best at each evaluation counts: see
      curves.of_best_member.
    shared_by: agents that share one agent's budget equally; curves then count
      the steps of all of them together.
    counted: share of a run's environment steps that its curve counts, where
      some of them teach nothing by design; the run makes so many more.
    script: a file in launch/, or a path, absolute or relative to launch/, that
      takes --run_dir, --seed, --config.run.* and --print-config.
  """

  flags: tuple[str, ...]
  together: bool = False
  budget: int | None = None
  best_of: int = 0
  shared_by: int = 1
  counted: float = 1.0
  script: str = 'run.py'

  def __post_init__(self):
    if self.together and (self.best_of or self.shared_by > 1):
      raise ValueError(
        f'together=True makes a seed of each agent of a process: leave out '
        f'best_of={self.best_of} and shared_by={self.shared_by}, or together.'
      )
    if self.shared_by < 1 or not 0 < self.counted <= 1:
      raise ValueError(
        f'shared_by={self.shared_by} must be at least 1, and '
        f'counted={self.counted} above 0 and at most 1.'
      )

  @property
  def scale(self) -> float:
    """Steps of a curve for one of run.steps_per_agent."""
    return self.shared_by * self.counted


def variant(*words: str, **more: Any) -> Variant:
  """A variant of AGENT:PRESET and settings, each as 'section.name=value'.

  Words that begin with -- are flags as they are; `more` is as for Variant.
  """
  cell, *rest = words
  flags = (w if w.startswith('--') else f'--config.{w}' for w in rest)
  return Variant((cell, *flags), **more)


@dataclasses.dataclass(frozen=True)
class Goal:
  """Acceptance criterion: enough seeds end with a good policy.

  Attributes:
    last_three: required mean return of the last three evaluations.
    reached: number of seeds that must reach it.
    seeds: number of seeds of the study; otherwise the goal is not judged.
  """

  variant: str
  last_three: float
  reached: int
  seeds: int


@dataclasses.dataclass(frozen=True)
class Contrast:
  """A difference to report in addition to those from the baseline."""

  name: str
  variant: str
  against: str


@dataclasses.dataclass(frozen=True)
class Study:
  """Systems that are compared by the rules of learning_statistics.py.

  Attributes:
    name: of its directory in docs/results/.
    environment: gymnasium id or module:Name.
    budget: environment steps of each agent.
    threshold: mean return that counts as solved.
    seeds: runs of each variant: seeds 0 to seeds - 1.
    variants: systems by label, in the order of the table.
    baseline: label of the variant that differences are measured from; by
      default the first.
    random: mean return of a random policy, as which a crashed run counts; None:
      that of REFERENCES, where the environment has to be.
    timed: whether systems are also compared at equal wall-clock time, in a
      second table; runs are then made one at a time.
  """

  name: str
  environment: str
  budget: int
  threshold: float
  seeds: int
  variants: Mapping[str, Variant]
  baseline: str = ''
  random: float | None = None
  timed: bool = False
  goals: tuple[Goal, ...] = ()
  contrasts: tuple[Contrast, ...] = ()

  def __post_init__(self):
    if not self.baseline:
      object.__setattr__(self, 'baseline', next(iter(self.variants)))
    wrong = self._wrong()
    if wrong:
      raise ValueError(f'study {self.name!r}: {wrong}')

  def _wrong(self) -> str:
    if not re.fullmatch(r'[a-z0-9_]+', self.name):
      return 'the name is that of a directory: use a-z, 0-9 and _.'
    if self.random is None and self.environment not in statistics.REFERENCES:
      return (
        'a crashed run counts as a random policy, and the return of one on '
        f'{self.environment} is not known. Measure it, and give it as random=.'
      )
    for label in self.variants:
      if not 1 <= self.budget_of(label) <= self.budget or self.seeds < 1:
        return (
          f'{label!r} has budget={self.budget_of(label)} and seeds='
          f'{self.seeds}; both must be at least 1, and the budget at most '
          f"the study's, {self.budget}."
        )
    named = [self.baseline, *(goal.variant for goal in self.goals)]
    named += [x for c in self.contrasts for x in (c.variant, c.against)]
    if unknown := [label for label in named if label not in self.variants]:
      return (
        f'there is no variant {unknown[0]!r}; there are {list(self.variants)}.'
      )
    if len({*map(slug, self.variants)}) < len(self.variants):
      return (
        f'two labels of {list(self.variants)} give one directory name. Let '
        'them differ in letters or digits.'
      )
    if self.timed and any(v.together for v in self.variants.values()):
      return (
        'a variant whose seeds share a process has no seconds of one seed. '
        'Leave out together=True or timed=True.'
      )
    return ''

  def budget_of(self, label: str) -> int:
    """Environment steps of each agent of a variant."""
    own = self.variants[label].budget
    return self.budget if own is None else own

  @property
  def reference(self) -> statistics.Reference:
    """The random return and the study's own threshold."""
    random = self.random
    if random is None:
      random = statistics.REFERENCES[self.environment].random
    return statistics.Reference(random, self.threshold)

  def only(self, labels: Sequence[str]) -> Study:
    """The same study with only the baseline and these variants.

    Raises:
      ValueError: no such variant.
    """
    if unknown := {*labels}.difference(self.variants):
      raise ValueError(
        f'study {self.name!r} has no variant {min(unknown)!r}; there are '
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


def compare(
  name: str,
  cell: str,
  budget: int,
  threshold: float,
  seeds: int,
  variants: Mapping[str, Variant],
  **more: Any,
) -> Study:
  """A study on the environment of AGENT:PRESET; `more` as for Study."""
  agent, preset = registry.split(cell)
  environment = registry.agent(agent).presets[preset]['environment']
  return Study(name, environment, budget, threshold, seeds, variants, **more)


def solves(
  cell: str,
  label: str,
  budget: int,
  threshold: float,
  seeds: int,
  reached: int | None = None,
  name: str = '',
) -> Study:
  """A study of AGENT:PRESET alone: does it reach the threshold in every seed?

  `reached` is the number of seeds that must, by default all; the name is by
  default AGENT_PRESET.
  """
  return compare(
    name or cell.replace(':', '_'),
    cell,
    budget,
    threshold,
    seeds,
    {label: Variant((cell,))},
    goals=(Goal(label, threshold, reached=reached or seeds, seeds=seeds),),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(jobs_lib.Job):
  """One process of a study.

  Attributes:
    seeds: one seed, or all seeds that the process makes together.
    budget: environment steps of each agent.
    scale: of its curve's steps; see `Variant.scale`.
  """

  study: str
  variant: str
  seeds: tuple[int, ...]
  budget: int
  scale: float = 1.0


def jobs(study: Study, directory: pathlib.Path) -> list[Job]:
  """All processes of a study, seed by seed; runs are in `directory`.

  Systems alternate, so that other load on the machine affects all alike.
  """
  found = []
  for seed in range(study.seeds):
    for label, variant in study.variants.items():
      if variant.together and seed:
        continue
      name, own = f'{slug(label)}-{seed}', [seed]
      if variant.together:
        # The number of seeds is in the name: more seeds make another process.
        name, own = f'{slug(label)}-of-{study.seeds}', [*range(study.seeds)]
      found.append(
        Job(
          study=study.name,
          variant=label,
          seeds=tuple(own),
          path=directory / name,
          script=jobs_lib.RUN.parent / variant.script,
          arguments=(*arguments(study, label), f'--seed={seed}'),
          budget=study.budget_of(label),
          scale=variant.scale,
        )
      )
  return found


def arguments(study: Study, label: str) -> tuple[str, ...]:
  """Flags of a variant, without those of a single run."""
  variant = study.variants[label]
  agents = study.seeds if variant.together else variant.best_of
  return (
    *variant.flags,
    *((f'--config.single.num_agents={agents}',) if agents else ()),
    '--config.run.steps_per_agent='
    f'{round(study.budget_of(label) / variant.scale)}',
    # Runs use their whole budget: a run that stops at its target has no area.
    '--config.run.target_return=None',
  )


def slug(label: str) -> str:
  """Turns 'PSO-DQN, c = 0' into 'pso-dqn-c-0'."""
  return re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')
