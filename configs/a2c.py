"""A2C: presets for each environment.

  python launch/run.py a2c:acrobot

Unrolls and costs are those of the paper and OpenAI Baselines (agents/a2c.py);
values marked [T] were chosen by trial (docs/agents/a2c.md).
`run.steps_per_agent` counts the steps of all environments.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import a2c
from murmuration.launch import registry

_ENVIRONMENTS = 16  # of the only actor, whose block is one batch


def _preset(environment: str, steps: int, target: float) -> dict[str, Any]:
  return {
    'environment': environment,
    'agent': {
      'batch_size': _ENVIRONMENTS,
      'anneal_env_steps': steps,
      'reward_scale': 0.1,  # as for IMPALA, configs/impala.py
      'optimizer': 'adam',  # [T]; paper: RMSProp
      'learning_rate': 1e-3,  # [T]
    },
    'actors': {'num_actors': 1, 'envs_per_actor': _ENVIRONMENTS},
    'run': {'steps_per_agent': steps, 'target_return': target},
  }


PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': _preset('CartPole-v1', 200_000, 475.0),
  'acrobot': _preset('Acrobot-v1', 400_000, -100.0),
}

AGENT = registry.Agent(
  name='a2c',
  title='A2C',
  agent=a2c.A2C,
  config=a2c.Config,
  topology='actor_learner',
  presets=PRESETS,
)
