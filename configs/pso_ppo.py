"""PSO-PPO and its PPO baseline: presets for each environment.

  python launch/run_swarm.py --config=configs/pso_ppo.py:pendulum

The agent's numbers are those of configs/ppo.py, the swarm's those of
specs/pso.md, section 4 [R]: the pull comes once per rollout and not once per
update, so it is stronger. An explorer has `agent.rollout_steps` /
`agent.unroll_length` environments; `run.steps_per_agent` counts the steps of
all of them.
"""

from __future__ import annotations

from typing import Any

import ml_collections

from agents import ppo as ppo_agent
from agents.swarm import explorers
from configs import ppo
from configs import presets
from launch import experiment

# k, c_max: section 4. Rates as all other presets of a swarm spread them.
_SWARM: dict[str, Any] = {'num_explorers': 4, 'k': 10.0, 'c_max': 0.5}
_OF_TASK: dict[str, dict[str, Any]] = {
  'cartpole': {'num_explorers': 8},
  'acrobot': {'num_explorers': 8},
  'pendulum': {'num_explorers': 8},
  'reacher': {'b': 5, 'window': 30, 'idle_episodes': 10},
  'swimmer': {'window': 10},
  'humanoid_standup': {'b': 2, 'window': 10, 'idle_episodes': 4},
}

PRESETS: dict[str, dict[str, Any]] = {
  name: {**preset, 'swarm': {**_SWARM, **_OF_TASK.get(name, {})}}
  for name, preset in ppo.PRESETS.items()
}


def get_config(preset: str = 'cartpole') -> ml_collections.ConfigDict:
  """The resolved config of a preset.

  Raises:
    ValueError: no such preset; the message names them.
  """
  chosen = presets.choose(PRESETS, preset or 'cartpole')
  return ml_collections.ConfigDict(
    {
      'agent_name': 'pso_ppo',  # not to be changed: who reads the rest
      'environment': chosen['environment'],
      'agent': presets.fields(ppo_agent.Config(**chosen['agent'])),
      'swarm': presets.fields(explorers.Config(**chosen['swarm'])),
      'run': presets.fields(experiment.RunConfig(**chosen['run'])),
    }
  )
