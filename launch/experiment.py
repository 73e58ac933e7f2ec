"""The input of a topology: an agent, a task and a budget."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import Annotated, Any, Literal

from murmuration.agents import base
from murmuration.agents import settings
from murmuration.environment_loops import environments

_Ratio = Annotated[
  float, settings.between(0, 1e4, 'above 0 and at most 10,000', '(]')
]
# The launcher looks twice a second.
_Patience = Annotated[
  float, settings.between(1, math.inf, 'a number of seconds, at least 1', '[)')
]


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """How long to run and what to measure. The same for every agent."""

  # Environment steps of each agent or explorer, after which the run ends.
  steps_per_agent: Annotated[int, settings.whole(1, 10**15)] = 30_000
  # Mean return that ends the run once more episodes have confirmed it, of every
  # agent that is evaluated; None: no such return.
  target_return: float | None = None
  wall_clock_s: settings.Seconds | None = None  # seconds until the run ends
  # Evaluations, spread evenly over the budget.
  evaluations: settings.Whole = 20
  # Greedy episodes in one evaluation, each in its own environment.
  eval_episodes: Annotated[int, settings.whole(1, 1_000_000)] = 10
  # Chance of a random action in evaluations. Papers on Atari: 0.05 (Mnih et al.
  # 2015), as a greedy policy can wait for ever for a ball that it never serves.
  eval_epsilon: settings.Fraction = 0.0
  # Learner steps in one TensorFlow call.
  updates_per_call: Annotated[int, settings.whole(1, 10_000)] = 8
  # Place of replay: a Reverb server 'colocated' with the learner or in a 'node'
  # of its own, or a 'ring' in the memory of a worker that acts itself.
  replay: Literal['colocated', 'node', 'ring'] = 'colocated'
  # Seconds between checkpoints of replay, at least.
  replay_checkpoint_s: settings.Seconds = 120.0
  # Threads of TensorFlow per node; several nodes share the cores.
  tf_threads: Annotated[int, settings.whole(1, 1024)] = 1
  # Effect of a broken environment: 'raise' ends its node with an error, 'drop'
  # ends the episode without a return and counts it, as presets of MuJoCo do.
  on_fault: Literal['raise', 'drop'] = 'raise'
  # Whether a seed always gives the same numbers, bit for bit, where one process
  # does all the work (limits: docs/reliability.md). Replay is then in that
  # process, without a server.
  deterministic: bool = False
  # Restarts of a node in a row, at most. A start in which the node worked for
  # 10 s, or was killed from outside, begins a new count.
  max_restarts: settings.Count = 5
  # Seconds after which a restart no longer counts.
  restart_window_s: settings.Positive = 600.0
  # Seconds without a heartbeat until a node is killed and restarted.
  silent_s: _Patience = 60.0
  # Seconds without a step or an update until the run is ended.
  stall_s: _Patience = 180.0
  # Environment steps after which an evaluated episode is cut, or any episode of
  # evolution strategies, if the task has no limit of its own.
  eval_max_steps: settings.Whole = 100_000
  # Whether the environment talks to other machines or programs; if so, the run
  # has no private network.
  needs_network: bool = False
  # Niceness of nodes that only evaluate or supervise.
  background_niceness: settings.Count = 5

  def __post_init__(self):
    settings.check(self, 'run')


@dataclasses.dataclass(frozen=True)
class Pace:
  """The ratio of learning to acting, in every topology.

  A member makes an update of `batch_size` transitions for every `batch_size /
  samples_per_insert` environment steps.
  """

  # Average number of times that a transition is sampled; None: acting and
  # learning do not wait for each other, as in Ape-X's paper.
  samples_per_insert: _Ratio | None = 8.0

  def __post_init__(self):
    settings.check(self, 'pace')

  def steps_per_update(self, batch_size: int) -> float:
    """Environment steps of a member per update, for a loop that does both."""
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
    make_agent: makes the agent; picklable, as nodes call it.
    environment: gymnasium id.
    num_agents: members in the whole program, P summed over its nodes.
    max_replay_size: transitions kept for each member.
    min_replay_size: transitions of each member before learning begins.
    pace: samples per insert, where the agent samples replay.
    seed: of the whole run.
    run: budget and measurement.
    run_dir: directory of the run; None keeps nothing.
    made: `make_agent` and the agent that it made, for code that builds a
      program. Nodes make their own.
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
  made: tuple[Callable[[], base.Agent], base.Agent] | None = dataclasses.field(
    default=None, compare=False
  )

  def __post_init__(self):
    if self.num_agents < 1:
      raise ValueError(f'num_agents={self.num_agents} must be at least 1.')
    if self.seed < 0:
      raise ValueError(f'seed={self.seed} must not be negative.')
    if self.run.eval_epsilon:
      spec = environments.spec(self.environment)
      environments.require_discrete(spec, 'run.eval_epsilon')

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, 'made': None}

  @property
  def agent(self) -> base.Agent:
    if self.made is not None and self.made[0] is self.make_agent:
      return self.made[1]
    return self.make_agent()

  @property
  def eval_limit(self) -> int | None:
    """Steps after which an evaluated episode is cut; None: the task's limit."""
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
