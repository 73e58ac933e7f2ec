"""Explorers and an evaluator around the star, which holds theta_star.

Each explorer node hosts P explorers. Nodes that may die and restart: explorers
(from theta_star) and the evaluator; the star, a replay node and the counter
from their checkpoints. Colocated replay is restored with its explorers. In a
resumed run, explorers continue from their own checkpoints.
"""

from __future__ import annotations

import functools
from typing import Any

import launchpad as lp

from murmuration.agents.swarm import explorers
from murmuration.environment_loops import atari
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import worker
from murmuration.launch.services import star
from murmuration.launch.services import star_exchange
from murmuration.launch.topologies import parts

SECTION = 'swarm'
Config = explorers.Config


def members(config: Config) -> int:
  """Agents in the whole program."""
  return config.num_explorers


def ignored(agent: Any, config: Config) -> dict[str, str]:
  """Settings that a run would ignore, and why."""
  del config
  found = {}
  if (agent.updates_per_call or 1) == 1:
    found['pull_every'] = f'{agent.name} has one update to a rollout, or none'
  return found


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if the sizes do not fit together."""
  task = experiment.environment
  if atari.is_atari(task) and atari.split(task)[1].life_loss:
    raise ValueError(
      f'{task} ends an episode with each life. Explorers would learn from '
      'lives, and a swarm compares their returns with R_star and that with '
      'run.target_return, which are of whole games. Leave out life_loss, or '
      'use actor_learner: --topology=actor_learner.'
    )
  agent = experiment.agent
  experience.check_members(experiment)
  hosted = hosting(config)
  program = lp.Program('swarm')
  counter = parts.counter(program, experiment)
  with program.group('star'):
    server = program.add_node(rpc.Node(star.Star, experiment, config, counter))
  replay = None
  if experiment.run.replay == 'node':
    parts.require_transitions(experiment)
    tables = functools.partial(replay_tables, experiment, hosted)
    replay, addresses = parts.replay(
      program, experiment, tables, shared=len(hosted) > 1
    )
  with program.group('explorer'):
    for i, own in enumerate(hosted):
      name = f'explorer/{i}'
      infos = [experiment.actor_info(index) for index in own]
      options: dict = {
        'exchange': functools.partial(
          star_exchange.StarExchange,
          config,
          agent.layout,
          len(own),
          agent.updates_per_call or 1,
        ),
        'peers': {'server': server},
        'first_shard': i,
        'table': _table(i),
        'learning_rates': explorers.learning_rates(
          agent, infos, config.lr_spread
        ),
      }
      arguments = (worker.Worker, experiment, name, infos, counter)
      if replay is None:
        program.add_node(replay_host.HostNode(*arguments, **options))
        continue
      program.add_node(
        lp.PyClassNode(
          *arguments,
          addresses=addresses,
          # Only one explorer node saves the replay node.
          hosts=[] if i else replay,
          **options,
        )
      )
  # The star ends the run, not the evaluator.
  parts.evaluator(program, experiment, counter, server, ends_run=False)
  parts.let_all_come_back(program)
  return program


def hosting(config: Config) -> list[list[int]]:
  """Explorer indices of each node, spread as evenly as possible."""
  size = config.explorers_per_node
  num_nodes = -(-config.num_explorers // size)
  return [
    list(range(i, config.num_explorers, num_nodes)) for i in range(num_nodes)
  ]


def replay_tables(
  experiment: experiment_lib.Experiment, hosted: list[list[int]]
) -> list:
  """The tables of all explorer nodes, for one replay node."""
  return [
    table
    for i, own in enumerate(hosted)
    for table in experience.of_members(experiment, len(own)).tables(_table(i))
  ]


def _table(node: int) -> str:
  return f'replay_{node}'
