"""PSO-D4PG and its D4PG baseline: presets for each environment.

  python launch/run_swarm.py --config=configs/pso_d4pg.py:pendulum

The agent's numbers are those of configs/d4pg.py, the swarm's those of
configs/pso_ddpg.py: the paper's explorers are DQN and DDPG.
"""

from __future__ import annotations

from typing import Any

import ml_collections

from agents import d4pg as d4pg_agent
from agents.swarm import explorers
from configs import d4pg
from configs import presets
from configs import pso_ddpg
from launch import experiment


def _swarm(name: str) -> dict[str, Any]:
  own = pso_ddpg.PRESETS.get(name, {}).get('swarm', {})
  return {**pso_ddpg.SWARM, **own}


PRESETS: dict[str, dict[str, Any]] = {
  name: {**preset, 'swarm': _swarm(name)}
  for name, preset in d4pg.PRESETS.items()
}


def get_config(preset: str = 'pendulum') -> ml_collections.ConfigDict:
  """The resolved config of a preset.

  Raises:
    ValueError: no such preset; the message names them.
  """
  chosen = presets.choose(PRESETS, preset or 'pendulum')
  return ml_collections.ConfigDict(
    {
      'agent_name': 'pso_d4pg',  # not to be changed: who reads the rest
      'environment': chosen['environment'],
      'agent': presets.fields(d4pg_agent.Config(**chosen['agent'])),
      'swarm': presets.fields(explorers.Config(**chosen['swarm'])),
      'run': presets.fields(experiment.RunConfig(**chosen['run'])),
    }
  )
