"""PPO: presets for each environment.

  python launch/run.py ppo:pendulum

Values are small-scale (docs/agents/ppo.md); [T] marks those chosen by trial.
`run.steps_per_agent` counts the environment steps of all actors.

One actor fills a rollout: `agent.rollout_steps` is `actors.envs_per_actor`
times `agent.unroll_length`. For several actors, divide envs_per_actor by their
number.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import ppo
from murmuration.configs import _mujoco
from murmuration.launch import registry


def _continuous(**agent) -> dict[str, Any]:
  """Settings for continuous actions: long rollouts, no entropy bonus."""
  return {
    'rollout_steps': 2048,
    'unroll_length': 128,
    'entropy_cost': 0.0,
    **agent,
  }


def _locomotion(environment: str, **agent) -> dict[str, Any]:
  """A preset of a million steps, as in most published tables."""
  steps = 1_000_000
  return {
    'environment': environment,
    'agent': _continuous(
      reward_scale=0.1,
      normalize_observations=True,
      anneal_env_steps=steps,
      **agent,
    ),
    'run': {**_mujoco.RUN, 'steps_per_agent': steps},
  }


PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    'agent': {},
    'run': {'steps_per_agent': 100_000, 'target_return': 475.0},
  },
  'acrobot': {
    'environment': 'Acrobot-v1',
    'agent': {},
    'run': {'steps_per_agent': 150_000, 'target_return': -100.0},
  },
  'pendulum': {
    'environment': 'Pendulum-v1',
    # [T] gamma and learning rate: the return is -250 after 40,000 steps; with
    # 0.99 and 3e-4, after 100,000.
    'agent': _continuous(gamma=0.95, learning_rate=1e-3, reward_scale=0.1),
    'run': {'steps_per_agent': 150_000},
  },
  'inverted_pendulum': {
    'environment': 'InvertedPendulum-v5',
    'agent': _continuous(),
    'run': {**_mujoco.RUN, 'steps_per_agent': 100_000},
  },
  'inverted_double_pendulum': {
    'environment': 'InvertedDoublePendulum-v5',
    'agent': _continuous(reward_scale=0.1),
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000},
  },
  'reacher': {
    'environment': 'Reacher-v5',
    # An unroll is an episode.
    'agent': _continuous(
      gamma=0.98, unroll_length=50, rollout_steps=2000, batch_size=50
    ),
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000},
  },
  'hopper': _locomotion('Hopper-v5'),
  # [T] Seeds 100 and 101 end at 4,626 and 4,389; where sigma depends on the
  # observation at 4,115 and 3,206.
  'half_cheetah': _locomotion('HalfCheetah-v5', free_sigma=True),
  'walker2d': _locomotion('Walker2d-v5'),
  'swimmer': {
    'environment': 'Swimmer-v5',
    'agent': _continuous(normalize_observations=True, anneal_env_steps=300_000),
    'run': {**_mujoco.RUN, 'steps_per_agent': 300_000, 'eval_episodes': 5},
  },
  'humanoid_standup': {
    'environment': 'HumanoidStandup-v5',
    'agent': _continuous(
      hidden_sizes=(256, 256),
      reward_scale=0.01,
      normalize_observations=True,
      anneal_env_steps=300_000,
    ),
    'run': {**_mujoco.RUN, 'steps_per_agent': 300_000, 'eval_episodes': 5},
  },
}


def _with_actors(preset: dict[str, Any]) -> dict[str, Any]:
  agent = ppo.Config(**preset['agent'])
  acting = {
    'num_actors': 1,
    'envs_per_actor': agent.rollout_steps // agent.unroll_length,
    # Of a server that acts: parameters are fetched between rollouts.
    'update_period': agent.rollout_steps,
  }
  return {**preset, 'actors': acting}


AGENT = registry.Agent(
  name='ppo',
  title='PPO',
  agent=ppo.PPO,
  config=ppo.Config,
  topology='actor_learner',
  presets={name: _with_actors(preset) for name, preset in PRESETS.items()},
)
