"""PSO-D4PG: D4PG's presets (configs/d4pg.py) with the swarm of PSO-DDPG.

  python launch/run.py pso_d4pg:pendulum

The paper's explorers use DQN and DDPG.
"""

from __future__ import annotations

from murmuration.configs import d4pg
from murmuration.configs import pso_ddpg
from murmuration.launch import registry

AGENT = registry.swarm_of(d4pg.AGENT, pso_ddpg.SWARM, pso_ddpg.OF_TASK)
