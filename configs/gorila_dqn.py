"""Gorila DQN: Nair et al. 2015, arXiv:1507.04296, at small scale.

  python launch/run.py gorila_dqn:acrobot

This is DQN with Adagrad at the shards. Values are this project's; [N] marks
those of the paper, [T] those chosen by trial
(docs/topologies/parameter_server.md). Each learner has its own environment and
replay; schedules and periods count the steps and updates of all learners.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import dqn
from murmuration.launch import registry

_LEARNERS = 4  # [N]: 100


def _preset(
  environment: str, steps: int, target: float, **agent: Any
) -> dict[str, Any]:
  return {
    'environment': environment,
    'agent': {
      # [T]; [N]: 1 step and no double Q-learning, with which values would rise
      # too slowly for these budgets.
      'n_step': 5,
      'double': True,
      'batch_size': 32,  # [N]
      'optimizer': 'adagrad',  # [N]
      'learning_rate': 0.05,
      **agent,
    },
    # One gradient for every two environment steps of a learner.
    'pace': {'samples_per_insert': 16.0},
    'server': {
      'num_learners': _LEARNERS,
      'num_shards': 4,  # [N]: 31
      'max_staleness': 2 * _LEARNERS,
      'outlier_sigmas': 4.0,
    },
    'run': {
      'steps_per_agent': steps,
      'target_return': target,
      # So a learner acts for 20 steps with the same parameters.
      'updates_per_call': 10,
    },
  }


PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': _preset(
    'CartPole-v1',
    100_000,
    475.0,
    learning_rate=0.1,  # [T]
    target_update_period=500,  # [N]: 60,000
    epsilon_steps=10_000,
    max_replay_size=20_000,  # [N]: a million frames
    min_replay_size=500,
  ),
  'acrobot': _preset(
    'Acrobot-v1',
    200_000,
    -100.0,
    target_update_period=1_000,
    epsilon_steps=20_000,
    max_replay_size=50_000,
    min_replay_size=1_000,
  ),
}

AGENT = registry.Agent(
  name='gorila_dqn',
  title='Gorila DQN',
  agent=dqn.DQN,
  config=dqn.Config,
  topology='parameter_server',
  presets=PRESETS,
)
