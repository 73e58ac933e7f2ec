"""PSO-DDPG: the presets of DDPG and TD3 (configs/ddpg.py) with a swarm.

python launch/run.py pso_ddpg:hopper
"""

from __future__ import annotations

from typing import Any

from murmuration.configs import ddpg
from murmuration.launch import registry

SWARM: dict[str, Any] = {
  'num_explorers': 4,  # paper: 31
  # By trial. The default 0.05 is for learning rates of 1e-3; the policy's here
  # is 1e-4. On InvertedPendulum-v5 with 8 explorers: with 0.05, seed 0 ended at
  # 139, seed 1 at 1000 after 17,000 steps, and seeds 2 and 3 were stopped; with
  # 0.005, seeds 10 and 11 were below 155 after 16,000 steps; with 0.001, both
  # had 1000 after 4,100. These runs were stopped early. No other task was
  # tried, nor a larger rate of the policy (Pendulum, TD3). As k is 200, a pull
  # has c >= arctan((b + 1) / (k b)) > 0.0049, so that it is always of c_max:
  # more wins (x) of theta_star do not make it stronger.
  'c_max': 0.001,
}
OF_TASK: dict[str, dict[str, Any]] = {
  'reacher': {'b': 5, 'window': 30, 'idle_episodes': 10},
  'swimmer': {'window': 10},
  'humanoid_standup': {'b': 2, 'window': 10, 'idle_episodes': 4},
}

_OF_TD3 = {f'td3_{name}': numbers for name, numbers in OF_TASK.items()}

AGENT = registry.swarm_of(ddpg.AGENT, SWARM, {**OF_TASK, **_OF_TD3})
