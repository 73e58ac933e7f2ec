"""Ape-X DQN: presets for each environment.

  python launch/run.py apex_dqn:acrobot

Values marked [T] were chosen by trial (docs/agents/apex_dqn.md).
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import dqn
from murmuration.launch import registry

# The settings that turn DQN into Ape-X, for all tasks.
_AGENT: dict[str, Any] = {
  'prioritized': True,
  'double': True,
  'exploration': 'ladder',
  'epsilon': 0.4,
  'epsilon_alpha': 7.0,
  'n_step': 5,  # [T]; paper: 3
  'learning_rate': 5e-4,
  'batch_size': 64,
  'max_gradient_norm': 40.0,
  'target_update_period': 200,
}

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    'agent': {
      'max_replay_size': 50_000,
      'min_replay_size': 1_000,
      # [T] With returns of 100, most TD errors are in the linear part of the
      # Huber loss. Scaled to a tenth they are not, and learning is steadier.
      'reward_scale': 0.1,
      # [T] A high rate at first, which falls to 0 over the rest of the budget.
      'learning_rate': 1e-3,
      'anneal_after': 10_000,
      'anneal_updates': 50_000,
    },
    'pace': {'samples_per_insert': 64.0},  # [T]
    # 8 transitions per item give three times the steps/s but learn less from
    # each one (docs/agents/apex_dqn.md).
    'actors': {'transitions_per_item': 2},
    'run': {'steps_per_agent': 50_000},
  },
  'acrobot': {
    'environment': 'Acrobot-v1',
    'agent': {
      'max_replay_size': 100_000,
      'min_replay_size': 2_000,
      # [T] Twice the batch and twice the rate.
      'batch_size': 128,
      'learning_rate': 1e-3,
      # [T] The rate falls over the last two fifths of the budget.
      'anneal_after': 22_500,
      'anneal_updates': 37_500,
    },
    'pace': {'samples_per_insert': 32.0},  # [T]
    'run': {'steps_per_agent': 150_000},
  },
  'lunar_lander': {
    'environment': 'LunarLander-v3',
    # [T] applies to all values here.
    'pace': {'samples_per_insert': 16.0},
    'agent': {
      'max_replay_size': 200_000,
      'min_replay_size': 5_000,
      'hidden_sizes': (128, 128),
      'activation': 'relu',
    },
    'run': {'steps_per_agent': 400_000},
  },
}


# Atari: rewards as in the papers, sizes for one machine ([T]). The paper's
# network is 'nature'; 'shallow' learns three times as fast here. Observations
# are bytes: a transition with two stacks has 56 kB uncompressed.
_ATARI: dict[str, Any] = {
  'agent': {
    'network': 'shallow',
    'reward_clip': 1.0,
    'n_step': 3,
    'learning_rate': 2.5e-4,
    'batch_size': 32,
    'max_replay_size': 50_000,
    'min_replay_size': 5_000,
    'target_update_period': 500,
  },
  'pace': {'samples_per_insert': 8.0},
  'actors': {'envs_per_actor': 4, 'update_period': 400},
  # Few evaluations of few episodes, as these are long.
  'run': {
    'steps_per_agent': 500_000,
    'evaluations': 10,
    'eval_episodes': 2,
    'updates_per_call': 4,
  },
}
PRESETS['pong'] = {'environment': 'ALE/Pong-v5', **_ATARI}
PRESETS['breakout'] = {
  'environment': 'ALE/Breakout-v5?life_loss=1',
  **_ATARI,
  # A ball has to be served after each life.
  'run': {**_ATARI['run'], 'eval_epsilon': 0.05, 'eval_episodes': 5},
}


def _with_agent(preset: dict[str, Any]) -> dict[str, Any]:
  return {**preset, 'agent': {**_AGENT, **preset['agent']}}


AGENT = registry.Agent(
  name='apex_dqn',
  title='Ape-X DQN',
  agent=dqn.DQN,
  config=dqn.Config,
  topology='actor_learner',
  presets={name: _with_agent(preset) for name, preset in PRESETS.items()},
)
