"""SAC: presets for each environment.

  python launch/run.py sac:hopper

Defaults are those of the paper and Stable-Baselines3 (docs/agents/sac.md). Both
make an update for every environment step: `samples_per_insert` equals the batch
size, 256.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import sac
from murmuration.configs import _mujoco
from murmuration.launch import registry

PRESETS: dict[str, dict[str, Any]] = {
  'pendulum': {
    'environment': 'Pendulum-v1',
    'pace': {'samples_per_insert': 256.0},
    # Rates as in RL Baselines3 Zoo, and sizes for a small task.
    'agent': {
      'policy_sizes': (64, 64),
      'critic_sizes': (64, 64),
      'policy_learning_rate': 1e-3,
      'critic_learning_rate': 1e-3,
      'temperature_learning_rate': 1e-3,
      'max_replay_size': 20_000,
    },
    'run': {'steps_per_agent': 10_000},
  },
  'hopper': {
    'environment': 'Hopper-v5',
    'pace': {'samples_per_insert': 256.0},
    # Random actions at first, as in the paper and in RL Baselines3 Zoo.
    'agent': {
      'random_steps': 10_000,
      'min_replay_size': 10_000,
      'max_replay_size': 1_000_000,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000, 'eval_episodes': 5},
  },
}

AGENT = registry.Agent(
  name='sac',
  title='SAC',
  agent=sac.SAC,
  config=sac.Config,
  topology='actor_learner',
  presets=PRESETS,
)
