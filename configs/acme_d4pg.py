"""Acme's own D4PG: presets for each environment.

python launch/run.py acme_d4pg:hopper
"""

from __future__ import annotations

from typing import Any

from murmuration.agents.acme import d4pg as acme_d4pg
from murmuration.configs import _mujoco
from murmuration.launch import registry

PRESETS: dict[str, dict[str, Any]] = {
  'inverted_pendulum': {
    'environment': 'InvertedPendulum-v5',
    'pace': {'samples_per_insert': 16.0},
    'agent': {
      'policy_sizes': (64, 64),
      'critic_sizes': (64, 64),
      'v_min': 0.0,
      'v_max': 100.0,
      # As in configs/d4pg.py, with the same samples per insert.
      'policy_learning_rate': 3e-4,
      'critic_learning_rate': 1e-3,
      'n_step': 3,
      'sigma': 0.2,
      'batch_size': 64,
      'max_replay_size': 100_000,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 50_000},
  },
  'hopper': {
    'environment': 'Hopper-v5',
    'pace': {'samples_per_insert': 32.0},
    'agent': {
      # Rewards are about 3 per step, and Acme's learner cannot scale them.
      'v_min': -50.0,
      'v_max': 500.0,
      'critic_learning_rate': 3e-4,
      'sigma': 0.2,
      'batch_size': 128,
      'min_replay_size': 5_000,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 300_000, 'eval_episodes': 5},
  },
}

AGENT = registry.Agent(
  name='acme_d4pg',
  title="Acme's D4PG",
  agent=acme_d4pg.AcmeD4PG,
  config=acme_d4pg.Config,
  topology='actor_learner',
  presets=PRESETS,
)
