"""L learners that act, and K shards that hold theta and apply their gradients.

Gorila (Nair et al. 2015): each learner has its own environment and replay. A3C
(Mnih et al. 2016): one shard, and learners that learn from unrolls.

Nodes that may die and restart: learners (the others go on; replay is restored
from its checkpoint), shards (from their checkpoints; learners wait), the
evaluator and the counter.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Literal

import launchpad as lp

from agents import base
from agents import settings
from launch import experience
from launch import experiment as experiment_lib
from launch import rpc
from launch.nodes import replay_host
from launch.nodes import worker
from launch.services import shard
from launch.services import shard_exchange
from launch.topologies import parts

SECTION = 'server'
members = parts.one_agent
_LONGEST_S = 250.0  # a learner waits for others, at most
LASTING = ('num_shards', 'slices')  # Checkpoints hold slices.
_FILTERED = settings.only_with('outlier_sigmas')


@dataclasses.dataclass(frozen=True)
class Config:
  """Learners, shards, and which gradients are accepted.

  Gorila is Nair et al. 2015. Values without a source were chosen here, for a
  few processes on one machine.
  """

  num_learners: settings.Nodes = 4  # L learners, which also act; Gorila: 100
  num_shards: settings.Nodes = 1  # K shards of theta; Gorila: 31, A3C: 1
  # Slices of theta: of 'even' size, or cut only between 'variables'.
  slices: Literal['even', 'variables'] = 'even'
  # Updates of a shard since a learner pulled its parameters, above which it
  # rejects the gradient; None: no limit, as in A3C. Gorila's is not published.
  # Of synchronous learners, gradients of the present parameters only are taken.
  max_staleness: Annotated[
    settings.Count | None, settings.only_with('synchronous', False)
  ] = None
  # Standard deviations above the mean of its losses at which a learner discards
  # a gradient; None: never. Gorila: 'several'.
  outlier_sigmas: settings.Positive | None = None
  # Decay per loss of that mean and standard deviation.
  outlier_decay: Annotated[settings.Fraction, _FILTERED] = 0.99
  # Losses before one can be discarded.
  outlier_warmup: Annotated[settings.Count, _FILTERED] = 100
  # Whether a learner reads slices again until all have one version; for tests.
  consistent_pull: bool = False
  # Whether learners wait for an unavailable shard. Gorila: False; the shard's
  # slice does not change while the others do.
  all_shards_required: bool = True
  checkpoint_period: settings.Whole = 100  # updates between a shard's saves
  # Whether shards apply the mean of all learners' gradients, as in A2C.
  synchronous: bool = False
  # Seconds that a synchronous shard waits for missing learners.
  sync_timeout_s: Annotated[
    settings.Seconds, settings.only_with('synchronous', True)
  ] = 10.0

  def __post_init__(self):
    settings.check(self, SECTION)


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if the sizes do not fit together."""
  if config.synchronous and config.sync_timeout_s > _LONGEST_S:
    raise ValueError(
      f'server.sync_timeout_s={config.sync_timeout_s:g}: at most '
      f'{_LONGEST_S:g} seconds. A learner that waits gives no sign of life, '
      'and would be taken for one that hangs.'
    )
  if experiment.total_steps < config.num_learners:
    raise ValueError(
      f'run.steps_per_agent={experiment.total_steps} are fewer than '
      f'server.num_learners={config.num_learners}.'
    )
  agent = experiment.make_agent()
  try:
    experience.check_members(
      _with_budget(experiment, experiment.total_steps // config.num_learners)
    )
  except experience.TooFewSteps as e:
    if config.num_learners == 1:
      raise
    raise ValueError(
      f'{e} This is of one learner: server.num_learners='
      f'{config.num_learners} share {experiment.run.steps_per_agent} steps.'
    ) from e
  shard.places(agent, config)  # Refuses shards that would be empty.
  if config.outlier_sigmas is not None and 'loss' not in agent.metrics:
    raise ValueError(
      f"server.outlier_sigmas looks at the metric 'loss', and {agent.name} has "
      'none. Leave it out.'
    )
  program = lp.Program('parameter_server')
  counter = parts.counter(program, experiment)
  replay = None
  if experiment.run.replay == 'node':
    parts.require_transitions(experiment)
    replay, addresses = parts.replay(
      program,
      experiment,
      lambda: experience.of_members(experiment, 1).tables('replay'),
      shared=config.num_learners > 1,
    )
  with program.group('shard'):
    shards = [
      program.add_node(
        rpc.Node(
          shard.Shard,
          experiment,
          config,
          i,
          counter,
          # A call may wait for the calls of all other learners.
          thread_pool_size=16 + 2 * config.num_learners,
        )
      )
      for i in range(config.num_shards)
    ]
  learners = []
  split = functools.partial(_split, config.num_learners)
  shares = parts.shares(experiment, 'learner', split)
  with program.group('learner'):
    for i, share in enumerate(shares):
      exchange = functools.partial(
        shard_exchange.ServerExchange,
        config,
        shard.places(agent, config),
        i,
        budget=experiment.total_steps,
      )
      options: dict[str, Any] = {
        'exchange': exchange,
        'peers': {'shards': shards},
        'first_shard': i,
        'shown': i == 0,  # All have the same parameters.
        # A synchronous update is one of all learners.
        'counts': i == 0 or not config.synchronous,
      }
      make: Any = replay_host.HostNode
      if replay is not None:
        make = rpc.Node
        # Only one learner saves the replay node.
        hosts = [] if i else replay
        options |= {'addresses': addresses, 'hosts': hosts}
      node = make(
        worker.Worker,
        # A resumed run may have less left than a step for each.
        _with_budget(experiment, max(share, 1)),
        f'learner/{i}',
        [base.ActorInfo(i, config.num_learners, experiment.seed)],
        counter,
        **options,
      )
      learners.append(program.add_node(node))
  if agent.serve_target:
    # The shards have no target network.
    parts.evaluator(program, experiment, counter, learners[0])
  else:
    reader = shard_exchange.Reader
    parts.evaluator(program, experiment, counter, shards, joined=reader)
  parts.let_all_come_back(program)
  return program


def _split(count: int, steps: int) -> list[int]:
  return [steps // count + (i < steps % count) for i in range(count)]


def _with_budget(
  experiment: experiment_lib.Experiment, steps: int
) -> experiment_lib.Experiment:
  """The experiment as one learner sees it, which makes some of the steps."""
  run = dataclasses.replace(experiment.run, steps_per_agent=steps)
  return dataclasses.replace(experiment, run=run)
