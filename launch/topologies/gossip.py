"""Workers that act, learn, and mix their parameters with neighbours.

Each worker is a whole agent with its own environments; there is no parameter
server and no global gradient. Nodes that may die and restart: workers (they
take parameters and iteration from a live neighbour, and the others go on
meanwhile), the averager (means are skipped), the evaluator and the counter.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal

import launchpad as lp

from agents import settings
from agents.exchange import mix
from agents.exchange import mixing
from launch import experience
from launch import experiment as experiment_lib
from launch import rpc
from launch.nodes import replay_host
from launch.nodes import worker
from launch.services import gossip
from launch.services import gossip_averager
from launch.services import gossip_proxy
from launch.topologies import parts

SECTION = 'gossip'


@dataclasses.dataclass(frozen=True)
class Config:
  """The gossip graph and its messages. An iteration is one learner call.

  Defaults are GALA's (Assran et al. 2019) unless marked.
  """

  num_learners: settings.Nodes = 4  # n, worker processes; GALA's example: 4
  # Directed graph in which workers send parameters; GALA's program: 'full'.
  topology: mixing.Topology = 'ring'
  # p, in-neighbours whose parameters enter one mixture; GALA: 1.
  peers_per_iteration: settings.Whole = 1
  # Transport of messages: 'rpc'; 'shared_memory' on one host, as in GALA; or
  # 'proxy', RPC through one more node for each worker, as in PALA.
  carrier: Literal['rpc', 'shared_memory', 'proxy'] = 'rpc'
  # Iterations that an in-neighbour may be behind; None: any number. GALA's
  # example has 1e8, so that no worker waits; 1 was chosen here.
  tau: settings.Count | None = 1
  # Seconds that a worker waits for a neighbour before it counts as dead.
  lock_timeout_s: settings.Seconds = 10.0
  # Iterations between two means of all workers, as in PALA; 0: no means.
  avg_period: settings.Count = 0
  # Whether these means include the optimizers' second moments.
  average_moments: bool = False
  # Parameters that are evaluated: those of the 'first' worker, or the 'mean' of
  # all workers.
  evaluated: Literal['first', 'mean'] = 'first'
  # Whether the learning rate is multiplied by sqrt(n).
  scale_learning_rate: bool = False

  def __post_init__(self):
    settings.check(self, SECTION)
    if self.average_moments and not self.avg_period:
      raise ValueError(
        'gossip.average_moments=True is part of the mean of all workers, and '
        'gossip.avg_period=0 makes none. Set a period, or leave it out.'
      )
    self.graph()  # Refuses more peers than the topology has.

  def graph(self) -> mixing.Graph:
    return mixing.Graph(
      self.topology, self.num_learners, self.peers_per_iteration
    )


def members(config: Config) -> int:
  """Agents in the whole program."""
  return config.num_learners


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if sizes or optimizer do not fit."""
  parts.require_colocated(experiment, SECTION)
  experience.check_members(experiment)
  agent, graph = experiment.make_agent(), config.graph()
  if config.average_moments:
    mix.second_moments(agent.optimizer)  # Refuses an optimizer without them.
  program = lp.Program('gossip')
  counter = parts.counter(program, experiment)
  averager = None
  if config.avg_period:
    with program.group('averager'):
      averager = program.add_node(
        rpc.Node(
          gossip_averager.Averager,
          config.num_learners,
          config.lock_timeout_s,
          # The calls of all workers block until the last one arrives.
          thread_pool_size=8 + config.num_learners,
        )
      )
  proxies: list[Any] = []
  if config.carrier == 'proxy':
    proxies = _proxies(program, graph)
  nodes = [
    replay_host.HostNode(worker.Worker, thread_pool_size=16 + graph.size)
    for _ in range(graph.size)
  ]
  with program.group('worker'):
    workers = [program.add_node(node) for node in nodes]
  rate = agent.learning_rate
  if config.scale_learning_rate:
    rate *= math.sqrt(graph.size)
  for i, node in enumerate(nodes):
    near = graph.neighbours(i)
    peers: dict[str, Any] = {'neighbours': {j: workers[j] for j in near}}
    if averager is not None:
      peers['averager'] = averager
    if proxies:
      peers['proxy'] = proxies[i]
    node.configure(
      experiment,
      f'worker/{i}',
      [experiment.actor_info(i)],
      counter,
      exchange=functools.partial(
        gossip.Gossip,
        graph,
        i,
        carrier=config.carrier,
        tau=config.tau,
        lock_timeout_s=config.lock_timeout_s,
        avg_period=config.avg_period,
        average_moments=config.average_moments,
      ),
      peers=peers,
      first_shard=i,
      learning_rates=[rate],
      shown=i == 0,  # The evaluator plays worker 0.
    )
  if config.evaluated == 'mean' and len(workers) > 1:
    mean = gossip_averager.Mean
    parts.evaluator(program, experiment, counter, workers, joined=mean)
  else:
    parts.evaluator(program, experiment, counter, workers[0])
  parts.let_all_come_back(program)
  return program


def _proxies(program: lp.Program, graph: mixing.Graph) -> list[Any]:
  """Adds a proxy for each worker, connected to its neighbours' proxies."""
  nodes = [
    rpc.Node(gossip_proxy.Proxy, thread_pool_size=8 + graph.size)
    for _ in range(graph.size)
  ]
  with program.group('proxy'):
    proxies = [program.add_node(node) for node in nodes]
  for i, node in enumerate(nodes):
    node.configure(i, {j: proxies[j] for j in graph.neighbours(i)})
  return proxies
