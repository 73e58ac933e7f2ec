"""DDPG and TD3: presets for each environment.

  --config=configs/ddpg.py:hopper       DDPG   (or just --config=hopper)
  --config=configs/ddpg.py:td3_hopper   TD3    (or just --config=td3_hopper)

Tasks, networks and budgets are those of the swarm's baseline,
configs/pso_ddpg.py. `run.steps_per_agent` counts the environment steps of all
actors.
"""

from __future__ import annotations

from typing import Any

import ml_collections

from agents import ddpg
from configs import presets
from configs import pso_ddpg
from launch import experiment

# Fujimoto et al. 2018, arXiv:1802.09477, section 6.1 and its supplement; tau
# and the limit of the smoothing are DDPG's defaults here too.
_TD3: dict[str, Any] = {
  'twin_critics': True,
  'policy_delay': 2,
  'target_update_period': 2,
  'smoothing_sigma': 0.2,
  'policy_learning_rate': 1e-3,
  'sigma': 0.1,
  'random_steps': 1_000,
}


def _presets() -> dict[str, dict[str, Any]]:
  plain = {
    name: {part: preset[part] for part in ('environment', 'agent', 'run')}
    for name, preset in pso_ddpg.PRESETS.items()
  }
  td3 = {
    f'td3_{name}': {**preset, 'agent': {**preset['agent'], **_TD3}}
    for name, preset in plain.items()
  }
  return {**plain, **td3}


PRESETS = _presets()


def get_config(preset: str = 'pendulum') -> ml_collections.ConfigDict:
  """The resolved config of a preset.

  Raises:
    ValueError: no such preset; the message names them.
  """
  chosen = presets.choose(PRESETS, preset or 'pendulum')
  agent = ddpg.Config(**chosen['agent'])
  return ml_collections.ConfigDict(
    {
      'environment': chosen['environment'],
      'agent': presets.fields(agent),
      'actors': presets.fields(presets.paced(agent)),
      'run': presets.fields(experiment.RunConfig(**chosen['run'])),
    }
  )
