"""Workers that act, learn, and mix their parameters with neighbours.

Each worker is a whole agent with its own environments; there is no parameter
server and no global gradient. Nodes that may die and restart: workers (they
take parameters and iteration from a live neighbour, and the others go on
meanwhile), the averager (means are skipped), the evaluator and the counter.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import launchpad as lp

from murmuration.agents import settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import worker
from murmuration.launch.services import gossip
from murmuration.launch.services import gossip_averager
from murmuration.launch.topologies import parts

SECTION = 'gossip'
REPLAY = 'ring'  # each worker has its own


@dataclasses.dataclass(frozen=True)
class Config:
  """The gossip graph and its messages. An iteration is one learner call.

  Defaults are GALA's (Assran et al. 2019) unless marked.
  """

  num_learners: settings.Nodes = 4  # n, worker processes; GALA's example: 4
  # Directed graph in which workers send parameters; GALA's program: 'full'.
  topology: gossip.Topology = 'ring'
  # p, in-neighbours whose parameters enter one mixture; GALA: 1.
  peers_per_iteration: settings.Whole = 1
  # Iterations that an in-neighbour may be behind; None: any number. GALA's
  # example has 1e8, so that no worker waits; 1 was chosen here.
  tau: settings.Count | None = 1
  # Iterations between two means of all workers, as in PALA; 0: no means.
  avg_period: settings.Count = 0

  def __post_init__(self):
    settings.check(self, SECTION)
    self.graph()  # Refuses more peers than the topology has.

  def graph(self) -> gossip.Graph:
    return gossip.Graph(
      self.topology, self.num_learners, self.peers_per_iteration
    )


def members(config: Config) -> int:
  """Agents in the whole program."""
  return config.num_learners


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if the sizes do not fit together."""
  parts.require_own_replay(experiment, SECTION)
  experience.check_members(experiment)
  graph = config.graph()
  program = lp.Program('gossip')
  counter = parts.counter(program, experiment)
  peers: dict[str, Any] = {}
  if config.avg_period:
    with program.group('averager'):
      peers['averager'] = program.add_node(
        rpc.Node(gossip_averager.Averager, config.num_learners)
      )
  nodes = [replay_host.HostNode(worker.Worker) for _ in range(graph.size)]
  with program.group('worker'):
    workers = [program.add_node(node) for node in nodes]
  for i, node in enumerate(nodes):
    node.configure(
      experiment,
      f'worker/{i}',
      [experiment.actor_info(i)],
      counter,
      exchange=functools.partial(
        gossip.Gossip,
        graph,
        i,
        tau=config.tau,
        avg_period=config.avg_period,
      ),
      peers={
        **peers,
        'neighbours': {j: workers[j] for j in graph.neighbours(i)},
      },
      first_shard=i,
      shown=i == 0,  # The evaluator plays worker 0.
    )
  parts.evaluator(program, experiment, counter, workers[0])
  parts.let_all_come_back(program)
  return program
