"""One process acts, learns and evaluates; a counter beside it only listens.

May die: nothing. The worker's death ends the run; it can be resumed from the
worker's last checkpoint, replay included.
"""

from __future__ import annotations

import launchpad as lp

from launch import experience
from launch import experiment as experiment_lib
from launch.engines import restarts
from launch.nodes import replay_host
from launch.nodes import worker
from launch.topologies import parts


def build(
  experiment: experiment_lib.Experiment, lr_spread: str = 'none'
) -> lp.Program:
  """Builds the program; nothing starts.

  Args:
    experiment: its `num_agents` members are independent agents that share a
      process: k seeds of a baseline for little more than the price of one.
    lr_spread: how learning rates spread over the members (agents/swarm).

  Raises:
    ValueError: the sizes do not fit together.
  """
  experience.check_members(experiment)
  program = lp.Program('single_process')
  counter = parts.counter(program, experiment)
  infos = [experiment.actor_info(i) for i in range(experiment.num_agents)]
  with program.group('worker'):
    program.add_node(
      replay_host.HostNode(
        worker.Worker,
        experiment,
        'worker/0',
        infos,
        counter,
        learning_rates=explorers.learning_rates(
          experiment.make_agent(), infos, lr_spread
        ),
        evaluates=True,
      )
    )
  restarts.assign(
    program, {'counter': restarts.EndsRun(), 'worker': restarts.Stop()}
  )
  return program
