"""Which agents run under which topologies: found by building them."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import launchpad as lp

from agents import a2c
from agents import d4pg
from agents import ddpg
from agents import dqn
from agents import impala
from agents import ppo
from agents.swarm import explorers as swarm_lib
from environment_loops import environments
from launch import actors
from launch import experiment as experiment_lib
from launch.topologies import actor_learner
from launch.topologies import single_process
from launch.topologies import swarm

ENGINES = ('local_mt', 'local_mp')


# What brings one agent: its class, config, and a task that it can do.
_PARTS: dict[str, tuple[Any, Any, str]] = {
  'DQN': (dqn.DQN, dqn.Config(), 'CartPole-v1'),
  'Ape-X DQN': (
    dqn.DQN,
    dqn.Config(prioritized=True, exploration='ladder'),
    'CartPole-v1',
  ),
  'DDPG': (ddpg.DDPG, ddpg.Config(), 'Pendulum-v1'),
  'D4PG': (d4pg.D4PG, d4pg.Config(), 'Pendulum-v1'),
  'IMPALA': (impala.IMPALA, impala.Config(), 'CartPole-v1'),
  'A2C': (a2c.A2C, a2c.Config(), 'CartPole-v1'),
  'PPO': (ppo.PPO, ppo.Config(), 'CartPole-v1'),
}


def experiment(agent: str, num_agents: int = 1) -> experiment_lib.Experiment:
  """An experiment of a named agent, with its defaults.

  Raises:
    KeyError: no such agent.
  """
  agent_class, config, environment = _PARTS[agent]
  spec = environments.spec(environment)
  return experiment_lib.Experiment(
    functools.partial(agent_class, config, spec),
    environment,
    num_agents,
    getattr(config, 'max_replay_size', 1),
    getattr(config, 'min_replay_size', 1),
    getattr(config, 'env_steps_per_update', 1),
  )


def _swarm(agent: str) -> lp.Program:
  config = swarm_lib.Config()
  return swarm.build(experiment(agent, config.num_explorers), config)


def _actor_learner(found: experiment_lib.Experiment) -> lp.Program:
  # What learns on policy has as many actors as a rollout has blocks.
  on_policy = found.make_agent().on_policy
  config = actors.Config(num_actors=1 if on_policy else 2)
  return actor_learner.build(found, config)


AGENTS = tuple(_PARTS)
TOPOLOGIES: dict[str, Callable[[str], lp.Program]] = {
  'single_process': lambda agent: single_process.build(experiment(agent)),
  'actor_learner': lambda agent: _actor_learner(experiment(agent)),
  'swarm': _swarm,
}


def table() -> str:
  """Agents by topologies as Markdown; a refusal is quoted."""
  lines = [
    '| agent | ' + ' | '.join(f'`{name}`' for name in TOPOLOGIES) + ' |',
    '| --- |' + ' --- |' * len(TOPOLOGIES),
  ]
  for agent in AGENTS:
    cells = [_cell(build, agent) for build in TOPOLOGIES.values()]
    lines.append(f'| {agent} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def default_swarm() -> lp.Program:
  """The program that `make swarm` runs, not started."""
  return _swarm('DQN')


def default_actor_learner() -> lp.Program:
  """Ape-X with two replay shards on nodes of their own, not started."""
  found = experiment('Ape-X DQN')
  run = dataclasses.replace(found.run, replay='node')
  return actor_learner.build(
    dataclasses.replace(found, run=run), actors.Config(shards=2)
  )


def _cell(build: Callable[[str], lp.Program], agent: str) -> str:
  try:
    program = build(agent)
  except ValueError as e:
    # The first sentence is the reason, the next what to do instead.
    return f'no: {str(e).partition(". ")[0]}'
  count = sum(len(nodes) for nodes in program.groups.values())
  return f'{count} nodes; ' + ', '.join(f'`{name}`' for name in ENGINES)
