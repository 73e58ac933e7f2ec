"""PSO-DQN and its DQN baseline: presets for each environment.

  --config=configs/pso_dqn.py:acrobot   (or just --config=acrobot)

Values are specs/pso.md's small-scale table [R] unless a comment says otherwise.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_collections
from ml_collections import config_dict

from agents import dqn
from agents import swarm
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
  preset = preset or 'cartpole'
  if preset not in PRESETS:
    raise ValueError(
      f'There is no preset {preset!r}. Choose one of {sorted(PRESETS)}, or '
      'start from one and set --config.environment.'
    )
  chosen = PRESETS[preset]
  return ml_collections.ConfigDict(
    {
      'environment': chosen['environment'],
      'agent': fields(dqn.Config(**chosen.get('agent', {}))),
      'swarm': fields(swarm.Config()),
      'run': fields(experiment.RunConfig(**chosen['run'])),
    }
  )


def fields(config) -> dict:
  """A frozen config as a dict; a field that may be None takes any literal."""
  found = {}
  for field in dataclasses.fields(config):
    if field.init:
      value = getattr(config, field.name)
      if 'None' in str(field.type):
        value = config_dict.FieldReference(value, field_type=object)
      found[field.name] = value
  return found
