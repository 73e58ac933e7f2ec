"""One node acts, learns and evaluates; a counter takes its reports.

No node is restarted: if the worker dies, the run ends, and can be resumed from
the worker's last checkpoint, which includes replay.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import launchpad as lp

from murmuration.agents import settings
from murmuration.agents.swarm import explorers
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.engines import restarts
from murmuration.launch.nodes import replay_host
from murmuration.launch.nodes import worker
from murmuration.launch.topologies import parts

SECTION = 'single'
REPLAY = 'ring'  # each worker has its own


@dataclasses.dataclass(frozen=True)
class Config:
  """Independent agents that share a process."""

  # Independent agents, each with its own seed; several cost little more than
  # one.
  num_agents: settings.Nodes = 1
  # Agents' learning rates: 'decades', a tenth to ten times the configured rate
  # and within [1e-5, 1e-2]; 'paper', 1e-5 to 1e-2; 'none', the configured rate.
  lr_spread: explorers.Spread = 'none'

  def __post_init__(self):
    settings.check(self, SECTION)


def members(config: Config) -> int:
  """Agents in the whole program."""
  return config.num_agents


def ignored(agent: Any, config: Config) -> dict[str, str]:
  """Settings that a run would ignore, and why."""
  del agent, config
  return {'run.background_niceness': 'one process does all the work'}


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if the sizes do not fit together."""
  parts.require_own_replay(experiment, 'single_process')
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
          experiment.agent, infos, config.lr_spread
        ),
        evaluates=True,
      )
    )
  restarts.assign(program, ends_run='counter')
  return program
