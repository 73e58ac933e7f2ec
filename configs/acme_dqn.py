"""Acme's own DQN: presets for each environment.

--config=configs/acme_dqn.py:cartpole   (or just --config=cartpole)
"""

from __future__ import annotations

from typing import Any

import ml_collections

from agents import acme_dqn
from configs import presets
from launch import experiment

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    # Acme's 32 samples per insert, in smaller batches.
    'agent': {
      'batch_size': 64,
      'env_steps_per_update': 2,
      'max_replay_size': 50_000,
    },
    'run': {'steps_per_agent': 50_000},
  },
}


def get_config(preset: str = 'cartpole') -> ml_collections.ConfigDict:
  """The resolved config of a preset.

  Raises:
    ValueError: no such preset; the message names them.
  """
  chosen = presets.choose(PRESETS, preset or 'cartpole')
  agent = acme_dqn.Config(**chosen['agent'])
  return ml_collections.ConfigDict(
    {
      'environment': chosen['environment'],
      'agent': presets.fields(agent),
      'actors': presets.fields(presets.paced(agent)),
      'run': presets.fields(experiment.RunConfig(**chosen['run'])),
    }
  )
