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
from typing import Any

import launchpad as lp

from murmuration.agents import base
from murmuration.agents import settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import worker
from murmuration.launch.services import shard
from murmuration.launch.services import shard_exchange
from murmuration.launch.topologies import parts

SECTION = 'server'
REPLAY = 'ring'  # each worker has its own
members = parts.one_agent


@dataclasses.dataclass(frozen=True)
class Config:
  """Learners, shards, and which gradients are accepted.

  Gorila is Nair et al. 2015. Values without a source were chosen here, for a
  few processes on one machine.
  """

  num_learners: settings.Nodes = 4  # L learners, which also act; Gorila: 100
  num_shards: settings.Nodes = 1  # K shards of theta; Gorila: 31, A3C: 1
  # Updates of a shard since a learner pulled its parameters, above which it
  # rejects the gradient; None: no limit, as in A3C. Gorila's is not published.
  max_staleness: settings.Count | None = None
  # Standard deviations above the mean of its losses at which a learner discards
  # a gradient; None: never. Gorila: 'several'.
  outlier_sigmas: settings.Positive | None = None
  checkpoint_period: settings.Whole = 100  # updates between a shard's saves

  def __post_init__(self):
    settings.check(self, SECTION)


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if the sizes do not fit together."""
  if experiment.total_steps < config.num_learners:
    raise ValueError(
      f'run.steps_per_agent={experiment.total_steps} are fewer than '
      f'server.num_learners={config.num_learners}.'
    )
  agent = experiment.agent
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
      )
      options: dict[str, Any] = {
        'exchange': exchange,
        'peers': {'shards': shards},
        'first_shard': i,
        'shown': i == 0,  # All have the same parameters.
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
  parts.evaluator(program, experiment, counter, learners[0])
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
