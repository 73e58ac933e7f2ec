"""PSO-PPO: PPO's presets (configs/ppo.py) with a swarm.

  python launch/run.py pso_ppo:pendulum

The pull is applied once per rollout and not once per update, so it is stronger
than with other agents. An explorer has `agent.rollout_steps` /
`agent.unroll_length` environments; `run.steps_per_agent` counts the steps of
all of them.
"""

from __future__ import annotations

from typing import Any

from murmuration.configs import ppo
from murmuration.configs import pso_ddpg
from murmuration.launch import registry

# Learning rates are spread as in all other presets of a swarm.
_SWARM: dict[str, Any] = {'num_explorers': 4, 'k': 10.0, 'c_max': 0.5}
_OF_TASK: dict[str, dict[str, Any]] = {
  'cartpole': {'num_explorers': 8},
  'acrobot': {'num_explorers': 8},
  'pendulum': {'num_explorers': 8},
  **pso_ddpg.OF_TASK,
}

AGENT = registry.swarm_of(ppo.AGENT, _SWARM, _OF_TASK)
