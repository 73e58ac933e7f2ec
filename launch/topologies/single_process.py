"""One process acts, learns and evaluates; a counter beside it only listens.

May die: nothing. The trainer's death ends the run; it can be resumed from the
trainer's last checkpoint, replay included.
"""

from __future__ import annotations

import launchpad as lp

from launch import experiment as experiment_lib
from launch import rpc
from launch.engines import restarts
from launch.experience import members
from launch.nodes import trainer
from launch.services import counter as counter_lib


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
  members.check(experiment)
  program = lp.Program('single_process')
  with program.group('counter'):
    counter = program.add_node(
      rpc.Node(
        counter_lib.Counter,
        experiment.run_dir,
        {'actor_steps': experiment.total_steps},
        experiment.run.wall_clock_s,
      )
    )
  with program.group('trainer'):
    program.add_node(
      lp.PyClassNode(
        trainer.Trainer,
        experiment,
        'trainer/0',
        [experiment.actor_info(i) for i in range(experiment.num_agents)],
        lr_spread,
        counter,
        evaluate=True,
      )
    )
  restarts.assign(
    program, {'counter': restarts.EndsRun(), 'trainer': restarts.Stop()}
  )
  return program
