"""What a topology needs to build a program: an agent, a task, a budget."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math

from agents import base
from agents import checks
from environment_loops import environments
from environment_loops import vector
from replay import packing

REPLAY_PLACEMENTS = ('colocated', 'node')


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """How long to run and what to measure. The same for every agent."""

  steps_per_agent: int = 30_000  # actor steps of each agent or explorer
  target_return: float | None = None  # a confirmed mean that ends the run
  wall_clock_s: float | None = None  # seconds that end the run
  evaluations: int = 20  # evaluations in the budget
  eval_episodes: int = 10  # greedy episodes in one evaluation
  # Chance of a random action in them. Papers on Atari: 0.05 (Mnih et al. 2015);
  # a greedy policy can wait for ever for a ball that it never serves.
  eval_epsilon: float = 0.0
  updates_per_call: int = 8  # learner steps in one TensorFlow call
  replay: str = 'colocated'  # with the learner, or a 'node' of its own
  replay_checkpoint_s: float = (
    120.0  # seconds between its checkpoints, at least
  )
  tf_threads: int = 1  # per node; several nodes share the cores
  # A broken environment: 'raise' fails its node, 'drop' loses the episode and
  # counts it, as the presets of MuJoCo's tasks do.
  on_fault: str = 'raise'
  background_niceness: int = 5  # of nodes that only measure or supervise

  def __post_init__(self):
    checks.whole(
      self,
      'run',
      (
        'steps_per_agent',
        'evaluations',
        'eval_episodes',
        'updates_per_call',
        'tf_threads',
      ),
    )
    checks.positive(self, 'run', ('wall_clock_s', 'replay_checkpoint_s'))
    if self.target_return is not None and math.isnan(self.target_return):
      raise ValueError('run.target_return is not a number.')
    if not 0 <= self.eval_epsilon <= 1:
      raise ValueError(
        f'run.eval_epsilon={self.eval_epsilon} must be between 0 and 1.'
      )
    if self.on_fault not in (vector.RAISE, vector.DROP):
      raise ValueError(
        f'run.on_fault={self.on_fault!r} is not known. Choose one of '
        f'{[vector.RAISE, vector.DROP]}.'
      )
    if self.replay not in REPLAY_PLACEMENTS:
      raise ValueError(
        f'run.replay={self.replay!r} is not known. Choose one of '
        f'{list(REPLAY_PLACEMENTS)}.'
      )


@dataclasses.dataclass(frozen=True)
class Pace:
  """How often what was experienced is learned from, in every topology.

  An update of `batch_size` transitions for every `batch_size /
  samples_per_insert` environment steps of a member.
  """

  # Times that a transition is sampled on average; None: free-running, as in
  # Ape-X's paper, where acting and learning do not wait for each other.
  samples_per_insert: float | None = 8.0

  def __post_init__(self):
    checks.positive(self, 'pace', ('samples_per_insert',))

  def steps(self, updates: int, batch_size: int) -> int:
    """Environment steps of a member for so many updates, where one loop acts.

    Raises:
      ValueError: there is no such number, or it is none at all.
    """
    if self.samples_per_insert is None:
      raise ValueError(
        'pace.samples_per_insert=None lets actors and learner run freely; here '
        'one loop acts and learns in turns. Set a number, or '
        '--topology=actor_learner.'
      )
    steps = round(updates * batch_size / self.samples_per_insert)
    if steps < 1:
      raise ValueError(
        f'pace.samples_per_insert={self.samples_per_insert:g} is too large: '
        f'{updates} updates of {batch_size} transitions would come after less '
        f'than one environment step. Take at most {updates * batch_size}, or '
        'raise agent.batch_size or run.updates_per_call.'
      )
    return steps


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
    pace: how often it is learned from; without meaning for unrolls.
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
  def total_steps(self) -> int:
    """Actor steps of all members: the budget of the run."""
    return self.num_agents * self.run.steps_per_agent

  @property
  def eval_period(self) -> int:
    """Actor steps of one member between evaluations."""
    return max(1, self.run.steps_per_agent // self.run.evaluations)

  def actor_info(self, index: int) -> base.ActorInfo:
    return base.ActorInfo(index, self.num_agents, self.seed)

  def transitions(self) -> packing.TransitionLayout:
    """How a transition of this environment is packed."""
    spec = environments.spec(self.environment)
    return packing.TransitionLayout(
      spec.observation_shape,
      spec.action_shape,
      spec.discrete,
      spec.observation_dtype,
    )
