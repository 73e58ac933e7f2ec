"""PSO-DQN: DQN's presets (configs/dqn.py) with a swarm.

python launch/run.py pso_dqn:acrobot
"""

from __future__ import annotations

from murmuration.configs import dqn
from murmuration.launch import registry

# Measured: 1.8% of untrained networks have a mean of at least 475 over 20
# episodes of CartPole-v1, so some 43% of swarms of 31 start with one.
_LEARNED = {'cartpole': {'offer_after_updates': 1_000}}

AGENT = registry.swarm_of(dqn.AGENT, of_preset=_LEARNED)
