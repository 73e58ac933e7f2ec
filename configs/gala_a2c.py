"""GALA-A2C (Assran et al. 2019), A2C with gossip: presets for each environment.

  python launch/run.py gala_a2c:acrobot

There are four workers with four environments each. `run.steps_per_agent` counts
the steps of one worker; together they take four times as many. [R] marks
small-scale values of this project, [C] those of GALA's code.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import a2c
from murmuration.configs import _mujoco
from murmuration.launch import registry

_WORKERS = 4  # [C]
_ENVIRONMENTS = 4  # per worker; [C]: 16


def _preset(
  environment: str,
  total_steps: int,
  unroll_length: int,
  target: float | None,
  run: dict[str, Any] | None = None,
  **agent: Any,
) -> dict[str, Any]:
  return {
    'environment': environment,
    'agent': {
      'batch_size': _ENVIRONMENTS,
      'unroll_length': unroll_length,  # [R]; [C]: 5
      'optimizer': 'rmsprop',  # [C]
      'rmsprop_epsilon': 1e-5,  # [C]
      'learning_rate': 1e-3,  # [R]; [C]: 7e-4
      'entropy_cost': 0.01,  # [C]
      'max_gradient_norm': 0.5,  # [C]
      'reward_scale': 0.1,  # as in configs/a2c.py
      **agent,
    },
    'gossip': {
      'num_learners': _WORKERS,
      'topology': 'ring',  # [R]
      'peers_per_iteration': 1,  # [C]
      'tau': 1,  # [R]
    },
    'run': {
      'steps_per_agent': total_steps // _WORKERS,
      'target_return': target,
      **(run or {}),
    },
  }


# A Gaussian policy, with separate networks as in A3C (configs/a3c.py).
_CONTINUOUS: dict[str, Any] = {'shared_torso': False, 'entropy_cost': 0.0}


PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': _preset('CartPole-v1', 200_000, 5, 475.0),
  'acrobot': _preset('Acrobot-v1', 400_000, 10, -100.0),
  'pendulum': _preset(
    'Pendulum-v1',
    1_000_000,
    20,
    None,
    learning_rate=7e-4,
    gamma=0.95,
    trace_lambda=0.95,  # GAE
    **_CONTINUOUS,
  ),
  'hopper': _preset(
    'Hopper-v5',
    1_000_000,
    16,
    None,
    {**_mujoco.RUN, 'eval_episodes': 5},
    # By trial (seeds 100 to 102, 300,000 steps of all workers; what those seeds
    # ended at was in part luck). Before: two layers of 256, a rate of 3e-4 and
    # standard deviations from the network.
    learning_rate=2e-3,
    free_sigma=True,
    normalize_advantages=True,
    trace_lambda=0.95,  # GAE
    normalize_observations=True,
    **_CONTINUOUS,
  ),
}

AGENT = registry.Agent(
  name='gala_a2c',
  title='GALA-A2C',
  agent=a2c.A2C,
  config=a2c.Config,
  topology='gossip',
  presets=PRESETS,
)
