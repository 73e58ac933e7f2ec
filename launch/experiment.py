"""What a topology needs to build a program: an agent, a task, a budget."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Annotated, Literal

from agents import base
from agents import settings
from environment_loops import environments

_Ratio = Annotated[
  float, settings.between(0, 1e4, 'above 0 and at most 10,000', '(]')
]


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """How long to run and what to measure. The same for every agent."""

  # Actor steps of each agent or explorer.
  steps_per_agent: settings.Whole = 30_000
  # A confirmed mean, of each agent that is evaluated, that ends the run.
  target_return: float | None = None
  wall_clock_s: settings.Seconds | None = None  # seconds that end the run
  # Evaluations in the budget.
  evaluations: settings.Whole = 20
  eval_episodes: settings.Whole = 10  # greedy episodes in one evaluation
  # Chance of a random action in them. Papers on Atari: 0.05 (Mnih et al. 2015);
  # a greedy policy can wait for ever for a ball that it never serves.
  eval_epsilon: settings.Fraction = 0.0
  # Learner steps in one TensorFlow call.
  updates_per_call: Annotated[int, settings.whole(1, 10_000)] = 8
  # With the learner, or a 'node' of its own.
  replay: Literal['colocated', 'node'] = 'colocated'
  # Seconds between checkpoints, at least.
  replay_checkpoint_s: settings.Seconds = 120.0
  tf_threads: Annotated[int, settings.whole(1, 1024)] = (
    1  # per node; several nodes share the cores
  )
  # A broken environment: 'raise' fails its node, 'drop' loses the episode and
  # counts it, as the presets of MuJoCo's tasks do.
  on_fault: Literal['raise', 'drop'] = 'raise'
  # The same numbers from the same seed, bit for bit, where one process does it
  # all (docs/reliability.md says how far). Replay is then in that process, and
  # no server has it.
  deterministic: bool = False
  # Restarts of a node in a row. A life that did something begins a new count.
  max_restarts: settings.Count = 5
  # Seconds after which a restart is forgotten.
  restart_window_s: settings.Positive = 600.0
  # Seconds until a node that shows no life is killed and started again.
  silent_s: settings.Positive = 60.0
  # Seconds until a run without a step or an update is ended.
  stall_s: settings.Positive = 180.0
  # Environment steps of an evaluated episode, and of each that evolution
  # strategies play, where the task has no limit.
  eval_max_steps: settings.Whole = 100_000
  # The environment talks to other machines or programs: no private network.
  needs_network: bool = False
  # Of nodes that only measure or supervise.
  background_niceness: settings.Count = 5

  def __post_init__(self):
    settings.check(self, 'run')


@dataclasses.dataclass(frozen=True)
class Pace:
  """How often what was experienced is learned from, in every topology.

  An update of `batch_size` transitions for every `batch_size /
  samples_per_insert` environment steps of a member.
  """

  # Times that a transition is sampled on average; None: free-running, as in
  # Ape-X's paper, where acting and learning do not wait for each other.
  samples_per_insert: _Ratio | None = 8.0

  def __post_init__(self):
    settings.check(self, 'pace')

  def steps_per_update(self, batch_size: int) -> float:
    """Environment steps of a member for one update, where one loop does both.

    Raises:
      ValueError: there is no such number.
    """
    if self.samples_per_insert is None:
      raise ValueError(
        'pace.samples_per_insert=None lets acting and learning run free of '
        'each other; here one loop does both, in turns. Set a number, or '
        '--topology=actor_learner.'
      )
    return batch_size / self.samples_per_insert


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An agent on an environment, with a seed and a budget.

  Attributes:
    make_agent: makes the agent; called in each node that needs one, so it has
      to be picklable.
    environment: gymnasium id.
    num_agents: members in the whole program, P summed over its nodes.
    max_replay_size: transitions kept for each member.
    min_replay_size: transitions of each member before learning begins.
    pace: samples per insert, where the agent samples replay.
    seed: of the whole run.
    run: budget and measurement.
    run_dir: where the run is kept; None keeps nothing.
  """

  make_agent: Callable[[], base.Agent]
  environment: str
  num_agents: int
  max_replay_size: int
  min_replay_size: int
  pace: Pace = Pace()
  seed: int = 0
  run: RunConfig = RunConfig()
  run_dir: str | None = None

  def __post_init__(self):
    if self.num_agents < 1:
      raise ValueError(f'num_agents={self.num_agents} must be at least 1.')
    if self.seed < 0:
      raise ValueError(f'seed={self.seed} must not be negative.')
    if self.run.eval_epsilon:
      spec = environments.spec(self.environment)
      environments.require_discrete(spec, 'run.eval_epsilon')

  @property
  def eval_limit(self) -> int | None:
    """Steps at which an evaluated episode is cut; None: the task ends it."""
    spec = environments.spec(self.environment)
    return None if spec.max_episode_steps else self.run.eval_max_steps

  @property
  def total_steps(self) -> int:
    """Actor steps of all members: the budget of the run."""
    return self.num_agents * self.run.steps_per_agent

  @property
  def eval_period(self) -> int:
    """Actor steps of one member between evaluations."""
    return max(1, self.run.steps_per_agent // self.run.evaluations)

  def actor_info(self, index: int) -> base.ActorInfo:
    return base.ActorInfo(index, self.num_agents, self.seed)
