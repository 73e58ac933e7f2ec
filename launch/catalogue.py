"""Which agents run under which topologies: found by building them."""

from __future__ import annotations

from collections.abc import Callable
import functools

import launchpad as lp

from agents import dqn
from agents import swarm as swarm_lib
from environment_loops import environments
from launch import experiment as experiment_lib
from launch.topologies import single_process
from launch.topologies import swarm

ENGINES = ('local_mt', 'local_mp')


def _dqn(num_agents: int) -> experiment_lib.Experiment:
  config = dqn.Config()
  spec = environments.spec('CartPole-v1')
  return experiment_lib.Experiment(
    functools.partial(dqn.DQN, config, spec),
    spec.name,
    num_agents,
    config.max_replay_size,
    config.min_replay_size,
    config.env_steps_per_update,
  )


def _swarm(make: Callable[[int], experiment_lib.Experiment]) -> lp.Program:
  config = swarm_lib.Config()
  return swarm.build(make(config.num_explorers), config)


AGENTS = {'DQN': _dqn}
TOPOLOGIES: dict[str, Callable[..., lp.Program]] = {
  'single_process': lambda make: single_process.build(make(1)),
  'swarm': _swarm,
}


def table() -> str:
  """Agents by topologies as Markdown; a refusal is quoted."""
  lines = [
    '| agent | ' + ' | '.join(f'`{name}`' for name in TOPOLOGIES) + ' |',
    '| --- |' + ' --- |' * len(TOPOLOGIES),
  ]
  for agent, make in AGENTS.items():
    cells = [_cell(build, make) for build in TOPOLOGIES.values()]
    lines.append(f'| {agent} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def default_swarm() -> lp.Program:
  """The program that `make swarm` runs, not started."""
  return _swarm(_dqn)


def _cell(build: Callable[..., lp.Program], make) -> str:
  try:
    program = build(make)
  except ValueError as e:
    return str(e)
  count = sum(len(nodes) for nodes in program.groups.values())
  return f'{count} nodes; ' + ', '.join(f'`{name}`' for name in ENGINES)
