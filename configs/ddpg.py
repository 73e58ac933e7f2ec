"""DDPG and TD3: presets for each environment.

  python launch/run.py ddpg:hopper        DDPG
  python launch/run.py ddpg:td3_hopper    TD3

`run.steps_per_agent` counts the environment steps of all actors.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import ddpg
from murmuration.configs import _mujoco
from murmuration.launch import registry

_LARGE: dict[str, Any] = {
  'policy_sizes': (256, 256),
  'critic_sizes': (256, 256),
  'batch_size': 128,
  'max_replay_size': 200_000,
  'min_replay_size': 5_000,
}
# One update per environment step, of 64 or 128 transitions.
_SMALL_PACE = {'samples_per_insert': 64.0}
_LARGE_PACE = {'samples_per_insert': 128.0}

_TASKS: dict[str, dict[str, Any]] = {
  'pendulum': {
    'environment': 'Pendulum-v1',
    'pace': _SMALL_PACE,
    'agent': {
      'policy_learning_rate': 1e-3,
      'reward_scale': 0.1,
      'max_replay_size': 50_000,
      'min_replay_size': 500,
    },
    'run': {'steps_per_agent': 15_000},
  },
  'inverted_pendulum': {
    'environment': 'InvertedPendulum-v5',
    'pace': _SMALL_PACE,
    # Returns and noise by trial (docs/agents/ddpg.md#results).
    'agent': {'n_step': 5, 'sigma': 0.5, 'max_replay_size': 50_000},
    'run': {**_mujoco.RUN, 'steps_per_agent': 20_000},
  },
  'inverted_double_pendulum': {
    'environment': 'InvertedDoublePendulum-v5',
    'pace': _SMALL_PACE,
    'agent': {'reward_scale': 0.1},
    'run': {**_mujoco.RUN, 'steps_per_agent': 50_000},
  },
  'reacher': {
    'environment': 'Reacher-v5',
    'pace': _SMALL_PACE,
    'agent': {'gamma': 0.98},
    'run': {**_mujoco.RUN, 'steps_per_agent': 50_000},
  },
  'hopper': {
    'environment': 'Hopper-v5',
    'pace': _LARGE_PACE,
    'agent': {**_LARGE, 'reward_scale': 0.1},
    'run': {**_mujoco.RUN, 'steps_per_agent': 150_000, 'eval_episodes': 5},
  },
  'swimmer': {
    'environment': 'Swimmer-v5',
    'pace': _LARGE_PACE,
    'agent': {
      **_LARGE,
      'policy_sizes': (64, 64),
      'critic_sizes': (64, 64),
      'sigma': 0.3,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 150_000, 'eval_episodes': 5},
  },
  'humanoid_standup': {
    'environment': 'HumanoidStandup-v5',
    'pace': _LARGE_PACE,
    'agent': {**_LARGE, 'sigma': 0.3, 'reward_scale': 0.01},
    'run': {**_mujoco.RUN, 'steps_per_agent': 100_000, 'eval_episodes': 5},
  },
}

# Fujimoto et al. 2018, arXiv:1802.09477, section 6.1 and supplement. DDPG's
# defaults of tau and the smoothing limit are already TD3's.
_TD3: dict[str, Any] = {
  'n_step': 1,
  'twin_critics': True,
  'policy_delay': 2,
  'target_update_period': 2,
  'smoothing_sigma': 0.2,
  'policy_learning_rate': 1e-3,
  'sigma': 0.1,
  'random_steps': 1_000,
}

PRESETS: dict[str, dict[str, Any]] = {
  **_TASKS,
  **{
    f'td3_{name}': {**preset, 'agent': {**preset['agent'], **_TD3}}
    for name, preset in _TASKS.items()
  },
}

AGENT = registry.Agent(
  name='ddpg',
  title='DDPG',
  agent=ddpg.DDPG,
  config=ddpg.Config,
  topology='actor_learner',
  presets=PRESETS,
)
