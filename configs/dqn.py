"""DQN: presets for each environment.

python launch/run.py dqn:acrobot
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import dqn
from murmuration.launch import registry

# An update of 64 transitions for every environment step.
_PACE = {'samples_per_insert': 64.0}

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    'pace': _PACE,
    'run': {'steps_per_agent': 30_000, 'target_return': 475.0},
  },
  'acrobot': {
    'environment': 'Acrobot-v1',
    'pace': _PACE,
    'agent': {
      'max_replay_size': 50_000,
      'min_replay_size': 1_000,
      'target_update_period': 200,
      'epsilon_steps': 10_000,
    },
    'run': {'steps_per_agent': 50_000, 'target_return': -100.0},
  },
  'mountain_car': {
    'environment': 'MountainCar-v0',
    'pace': _PACE,
    'agent': {
      # With -1 per step until a rarely reached goal, learning needs long
      # returns and a large replay.
      'n_step': 5,
      'max_replay_size': 100_000,
      'min_replay_size': 2_000,
      'target_update_period': 200,
      'epsilon_steps': 30_000,
    },
    'run': {'steps_per_agent': 100_000, 'target_return': -110.0},
  },
  'lunar_lander': {
    'environment': 'LunarLander-v3',
    'pace': _PACE,
    'agent': {
      'n_step': 3,
      'max_replay_size': 100_000,
      'min_replay_size': 2_000,
      'target_update_period': 500,
      'epsilon_steps': 30_000,
    },
    'run': {'steps_per_agent': 150_000, 'target_return': 200.0},
  },
}

AGENT = registry.Agent(
  name='dqn',
  title='DQN',
  agent=dqn.DQN,
  config=dqn.Config,
  topology='single_process',
  presets=PRESETS,
)
