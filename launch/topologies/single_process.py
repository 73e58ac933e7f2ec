"""One process acts, learns and evaluates; a counter beside it only listens.

May die: nothing. The trainer's death ends the run; it can be resumed from the
trainer's last checkpoint, replay included.
"""

from __future__ import annotations

import dataclasses

import launchpad as lp

from agents import checks
from launch import experiment as experiment_lib
from launch import rpc
from launch.engines import restarts
from launch.experience import members as members_lib
from launch.nodes import trainer
from launch.services import counter as counter_lib

SECTION = 'single'
_SPREADS = ('none', 'decades', 'paper')  # agents/swarm


@dataclasses.dataclass(frozen=True)
class Config:
  """Independent agents that share a process."""

  num_agents: int = 1  # k seeds for little more than the price of one
  lr_spread: str = 'none'  # of learning rates over them: 'decades', 'paper'

  def __post_init__(self):
    checks.whole(self, SECTION, ('num_agents',))
    if self.lr_spread not in _SPREADS:
      raise ValueError(
        f'{SECTION}.lr_spread={self.lr_spread!r} is not known. Choose one of '
        f'{list(_SPREADS)}.'
      )


def members(config: Config) -> int:
  """Agents in the whole program."""
  return config.num_agents


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program; nothing starts.

  Raises:
    ValueError: the sizes do not fit together.
  """
  if experiment.run.replay != 'colocated':
    raise ValueError(
      f'run.replay={experiment.run.replay!r}: single_process keeps its replay '
      'in the process that learns. Leave it out, or use actor_learner or swarm.'
    )
  members_lib.check(experiment)
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
        config.lr_spread,
        counter,
        evaluate=True,
      )
    )
  restarts.assign(
    program, {'counter': restarts.EndsRun(), 'trainer': restarts.Stop()}
  )
  return program
