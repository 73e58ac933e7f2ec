"""PSO-DQN and its DQN baseline: presets for each environment.

  --config=configs/pso_dqn.py:acrobot   (or just --config=acrobot)

Values are specs/pso.md's small-scale table [R] unless a comment says otherwise.
"""

from __future__ import annotations

from typing import Any

import ml_collections

from agents import dqn
from agents.swarm import explorers
from configs import presets
from launch import experiment

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    'run': {'steps_per_agent': 30_000, 'target_return': 475.0},
  },
  'acrobot': {
    'environment': 'Acrobot-v1',
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
    'agent': {
      # Not in the specs: a reward of -1 per step until a rare goal needs long
      # returns and much replay.
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
    'agent': {
      # Not in the specs.
      'n_step': 3,
      'max_replay_size': 100_000,
      'min_replay_size': 2_000,
      'target_update_period': 500,
      'epsilon_steps': 30_000,
    },
    'run': {'steps_per_agent': 150_000, 'target_return': 200.0},
  },
}


def get_config(preset: str = 'cartpole') -> ml_collections.ConfigDict:
  """The resolved config of a preset.

  Raises:
    ValueError: no such preset; the message names them.
  """
  chosen = presets.choose(PRESETS, preset or 'cartpole')
  return ml_collections.ConfigDict(
    {
      'environment': chosen['environment'],
      'agent': presets.fields(dqn.Config(**chosen.get('agent', {}))),
      'swarm': presets.fields(explorers.Config()),
      'run': presets.fields(experiment.RunConfig(**chosen['run'])),
    }
  )
