"""PSO-DQN: DQN's presets (configs/dqn.py), explored by a swarm.

python launch/run.py pso_dqn:acrobot
"""

from __future__ import annotations

from configs import dqn
from launch import registry

AGENT = registry.swarm_of(dqn.AGENT)
