"""Which agent a run is of: the name in its config.json to its classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agents import a2c
from agents import acme_d4pg
from agents import acme_dqn
from agents import base
from agents import d4pg
from agents import ddpg
from agents import dqn
from agents import impala
from agents import ppo
from environment_loops import environments
from launch import command_line


class Entry(NamedTuple):
  """What an agent is made of: agent(config(**numbers), spec)."""

  config: Any
  agent: Callable[[Any, environments.Spec], base.Agent]


AGENTS = {
  'a2c': Entry(a2c.Config, a2c.A2C),
  'acme_d4pg': Entry(acme_d4pg.Config, acme_d4pg.AcmeD4PG),
  'acme_dqn': Entry(acme_dqn.Config, acme_dqn.AcmeDQN),
  'apex_dqn': Entry(dqn.Config, dqn.DQN),
  'd4pg': Entry(d4pg.Config, d4pg.D4PG),
  'ddpg': Entry(ddpg.Config, ddpg.DDPG),
  'dqn': Entry(dqn.Config, dqn.DQN),
  'impala': Entry(impala.Config, impala.IMPALA),
  'ppo': Entry(ppo.Config, ppo.PPO),
  'pso_d4pg': Entry(d4pg.Config, d4pg.D4PG),
  'pso_ddpg': Entry(ddpg.Config, ddpg.DDPG),
  'pso_dqn': Entry(dqn.Config, dqn.DQN),
  'pso_ppo': Entry(ppo.Config, ppo.PPO),
}


def make(config: dict[str, Any]) -> base.Agent:
  """The agent of a run, from its resolved config.

  Raises:
    ValueError: the agent is not known, or its environment or numbers cannot be
      used here.
  """
  name = config.get('agent_name')
  if name not in AGENTS:
    raise ValueError(
      f'agent_name={name!r} is not known; there are {sorted(AGENTS)}. A new '
      'agent is a line in launch/registry.py.'
    )
  entry = AGENTS[name]
  return entry.agent(
    command_line.make(entry.config, config['agent']),
    environments.spec(config['environment']),
  )
