"""A worker that learns from a data set, without acting, and evaluates itself.

    run.py dqn --topology=offline --config.offline.data=out/

`murmuration dataset RUN out/` writes such a data set. The worker
(nodes/offline.py) learns from it as from replay. It makes as many updates, and
evaluates as often, as a run of `run.steps_per_agent` environment steps at its
pace. No node is restarted: if the worker dies, the run ends, and can be resumed
from its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import launchpad as lp

from murmuration.agents import settings
from murmuration.launch import experience
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.engines import restarts
from murmuration.launch.nodes import offline
from murmuration.launch.topologies import parts

SECTION = 'offline'
members = parts.one_agent
# Settings of the project's agents for acting in training alone.
_ACTING = (
  'agent.exploration',
  'agent.epsilon',
  'agent.epsilon_alpha',
  'agent.epsilon_start',
  'agent.epsilon_end',
  'agent.epsilon_steps',
  'agent.random_steps',
  'agent.noise',
  'agent.noise_theta',
  'agent.sigma',
)


@dataclasses.dataclass(frozen=True)
class Config:
  """The data set."""

  data: str = ''  # path of transitions.npz (replay/export.py), or its directory
  # Environment that the data set names, if the run's name for the same task
  # differs; '': the run's.
  environment: str = ''

  def __post_init__(self):
    settings.check(self, SECTION)


def ignored(agent: Any, config: Config) -> dict[str, str]:
  """Settings that a run would ignore, and why."""
  del config
  acting: tuple[str, ...] = ()
  if type(agent).__module__.startswith('murmuration.agents.'):
    acting = _ACTING  # what others make of such names is theirs
  return {
    **dict.fromkeys(acting, 'nobody acts but to evaluate, which is greedy'),
    'agent.max_replay_size': 'all of the data set is kept',
    'agent.min_replay_size': 'all of the data set is there at once',
    'run.background_niceness': 'one process does all the work',
    'run.replay': 'the data set is in the memory of the learner',
    'run.replay_checkpoint_s': 'nothing is written to replay',
  }


def build(experiment: experiment_lib.Experiment, config: Config) -> lp.Program:
  """Builds the program. Raises ValueError if there is no fitting data set."""
  agent = experiment.agent
  if agent.learner_class is not None or agent.experience == 'unrolls':
    raise ValueError(
      f'{agent.name} does not learn from transitions of replay by the '
      "project's learner, and a data set has nothing else. Use dqn, d4pg, "
      'ddpg or sac.'
    )
  if not config.data:
    raise ValueError(
      'offline.data names no data set. `murmuration dataset RUN out/` '
      'writes one: --config.offline.data=out/.'
    )
  path = pathlib.Path(config.data).resolve()
  offline.check(experiment, config.environment or experiment.environment, path)
  # The whole data set is there from the start.
  whole = dataclasses.replace(experiment, min_replay_size=1)
  experience.check_members(whole, acts=False)
  program = lp.Program('offline')
  counter = parts.counter(
    program, experiment, {'learner_steps': offline.updates(experiment)}
  )
  with program.group('worker'):
    program.add_node(
      rpc.Node(offline.Worker, experiment, 'worker/0', counter, data=str(path))
    )
  restarts.assign(program, ends_run='counter')
  return program
