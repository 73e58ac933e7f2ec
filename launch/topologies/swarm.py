"""Explorers, supervisors and an evaluator round a parameter server.

Explorer nodes host P explorers each. May die and come back: explorers (they go
on from theta_star), supervisors (their episode is asked for again), evaluator.
The parameter server and the counter come back from their checkpoints. A replay
node that dies ends the run; colocated replay comes back with its explorers, as
it was checkpointed. In a resumed run explorers are what they were.
"""

from __future__ import annotations

import launchpad as lp

from agents.swarm import explorers as swarm_lib
from launch import experiment as experiment_lib
from launch import rpc
from launch.engines import restarts
from launch.experience import members as members_lib
from launch.nodes import evaluator
from launch.nodes import supervisor
from launch.services import counter as counter_lib
from launch.services import star

SECTION = 'swarm'
Config = swarm_lib.Config


def members(config: Config) -> int:
  """Agents in the whole program."""
  return config.num_explorers


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program; nothing starts.

  Raises:
    ValueError: the sizes do not fit together.
  """
  agent = experiment.make_agent()
  members_lib.check(experiment)
  if config.claim_mode == 'target' and 'target_max' not in agent.metrics:
    raise ValueError(
      f"swarm.claim_mode='target' claims the largest target of a batch, and "
      f"{agent.name} computes none. Set swarm.claim_mode='return'."
    )
  if experiment.num_agents != config.num_explorers:
    raise ValueError(
      f'num_agents={experiment.num_agents} must equal num_explorers='
      f'{config.num_explorers}.'
    )
  hosted = hosting(config)
  program = lp.Program('swarm')
  with program.group('counter'):
    counter = program.add_node(
      rpc.Node(
        counter_lib.Counter,
        experiment.run_dir,
        {'actor_steps': experiment.total_steps},
        experiment.run.wall_clock_s,
      )
    )
  with program.group('parameter_server'):
    server = program.add_node(
      rpc.Node(
        star.ParameterServer,
        config,
        agent.layout,
        experiment.run_dir,
        counter,
        experiment.run.target_return,
      )
    )
  replay = None
  if experiment.run.replay == 'node':
    with program.group('replay'):
      replay = program.add_node(
        lp.ReverbNode(lambda: replay_tables(experiment, hosted))
      )
  with program.group('explorer'):
    for i, own in enumerate(hosted):
      program.add_node(
        lp.PyClassNode(
          supervisor.Explorer,
          experiment,
          config,
          f'explorer/{i}',
          own,
          counter,
          server,
          replay=replay,
          table=f'replay_{i}',
          shard=i,
        )
      )
  with program.group('supervisor'):
    for i in range(config.num_supervisors):
      program.add_node(
        lp.PyClassNode(
          supervisor.Supervisor, experiment, config, i, counter, server
        )
      )
  with program.group('evaluator'):
    program.add_node(
      lp.PyClassNode(evaluator.Evaluator, experiment, counter, server)
    )
  comes_back = restarts.Restart()
  restarts.assign(
    program,
    {
      'counter': restarts.EndsRun(restart=comes_back),
      'parameter_server': comes_back,
      'explorer': comes_back,
      'supervisor': comes_back,
      'evaluator': comes_back,
      **({'replay': restarts.Stop()} if replay is not None else {}),
    },
  )
  return program


def hosting(config: swarm_lib.Config) -> list[list[int]]:
  """Explorer indices of each node: as even as whole numbers allow."""
  size = config.explorers_per_node
  num_nodes = -(-config.num_explorers // size)
  return [
    list(range(i, config.num_explorers, num_nodes)) for i in range(num_nodes)
  ]


def replay_tables(
  experiment: experiment_lib.Experiment, hosted: list[list[int]]
) -> list:
  """One table for each explorer node, all in one server."""
  return [
    table
    for i, own in enumerate(hosted)
    for table in members_lib.of(experiment, len(own)).tables(f'replay_{i}')
  ]
