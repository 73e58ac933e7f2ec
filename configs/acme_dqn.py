"""Acme's own DQN: presets for each environment.

python launch/run.py acme_dqn:cartpole
"""

from __future__ import annotations

from typing import Any

from murmuration.agents.acme import dqn as acme_dqn
from murmuration.launch import registry

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    'pace': {'samples_per_insert': 32.0},  # Acme's value; smaller batches
    'agent': {'batch_size': 64, 'max_replay_size': 50_000},
    'run': {'steps_per_agent': 50_000},
  },
}

AGENT = registry.Agent(
  name='acme_dqn',
  title="Acme's DQN",
  agent=acme_dqn.AcmeDQN,
  config=acme_dqn.Config,
  topology='actor_learner',
  presets=PRESETS,
)
