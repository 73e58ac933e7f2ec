"""Acme's own D4PG: presets for each environment.

--config=configs/acme_d4pg.py:hopper   (or just --config=hopper)
"""

from __future__ import annotations

from typing import Any

import ml_collections

from agents import acme_d4pg
from configs import presets
from launch import experiment

PRESETS: dict[str, dict[str, Any]] = {
  'inverted_pendulum': {
    'environment': 'InvertedPendulum-v5',
    'agent': {
      'policy_sizes': (64, 64),
      'critic_sizes': (64, 64),
      'v_min': 0.0,
      'v_max': 100.0,
      # As configs/d4pg.py, at the same samples per insert.
      'policy_learning_rate': 3e-4,
      'critic_learning_rate': 1e-3,
      'n_step': 3,
      'sigma': 0.2,
      'batch_size': 64,
      'env_steps_per_update': 4,
      'max_replay_size': 100_000,
    },
    'run': {'on_fault': 'drop', 'steps_per_agent': 50_000},
  },
  'hopper': {
    'environment': 'Hopper-v5',
    'agent': {
      # Rewards of some 3 a step: Acme's learner has no scale for them.
      'v_min': -50.0,
      'v_max': 500.0,
      'critic_learning_rate': 3e-4,
      'sigma': 0.2,
      'batch_size': 128,
      'env_steps_per_update': 4,
      'min_replay_size': 5_000,
    },
    'run': {
      'on_fault': 'drop',
      'steps_per_agent': 300_000,
      'eval_episodes': 5,
    },
  },
}


def get_config(preset: str = 'inverted_pendulum') -> ml_collections.ConfigDict:
  """The resolved config of a preset.

  Raises:
    ValueError: no such preset; the message names them.
  """
  chosen = presets.choose(PRESETS, preset or 'inverted_pendulum')
  agent = acme_d4pg.Config(**chosen['agent'])
  return ml_collections.ConfigDict(
    {
      'environment': chosen['environment'],
      'agent': presets.fields(agent),
      'actors': presets.fields(presets.paced(agent)),
      'run': presets.fields(experiment.RunConfig(**chosen['run'])),
    }
  )
