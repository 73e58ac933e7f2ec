"""A3C: Mnih et al. 2016, arXiv:1602.01783, at small scale.

  python launch/run.py a3c:pendulum

The agent is A2C (agents/a2c.py), in a topology whose learners do not wait for
each other: four with four environments each, where the paper has 16 with one.
As in the paper, all learners share the statistics of RMSProp, which the shard
holds. Values are this project's; [M] marks those of the paper.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import a2c
from murmuration.configs import _mujoco
from murmuration.launch import registry

_ENVIRONMENTS = 4  # of each learner; [M]: 1


def _preset(
  environment: str,
  steps: int,
  agent: dict[str, Any],
  target: float | None = None,
  **run: Any,
) -> dict[str, Any]:
  return {
    'environment': environment,
    'agent': {
      'batch_size': _ENVIRONMENTS,
      'learning_rate': 1e-3,
      'rmsprop_epsilon': 1e-3,  # [M]: 0.1, for sums over a rollout
      'anneal_env_steps': steps,  # of all learners; as [M]
      **agent,
    },
    'server': {'num_learners': 4},  # [M]: 16
    'actors': {'num_actors': 1, 'envs_per_actor': _ENVIRONMENTS},
    'run': {'steps_per_agent': steps, 'target_return': target, **run},
  }


def _discrete(**agent: Any) -> dict[str, Any]:
  return {
    'unroll_length': 20,  # [M]: 5
    'entropy_cost': 0.01,  # [M]
    'max_gradient_norm': 40.0,
    'reward_scale': 0.1,  # as for IMPALA, configs/impala.py
    **agent,
  }


def _continuous(unroll_length: int, **agent: Any) -> dict[str, Any]:
  return {
    'unroll_length': unroll_length,
    'shared_torso': False,  # [M]
    'entropy_cost': 1e-4,  # [M]
    'learning_rate': 7e-4,
    'max_gradient_norm': 1.0,
    **agent,
  }


# As for PPO (configs/ppo.py).
_LARGE: dict[str, Any] = {
  'hidden_sizes': (256, 256),
  'learning_rate': 3e-4,
  'normalize_observations': True,
}

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': _preset('CartPole-v1', 300_000, _discrete(), 475.0),
  'acrobot': _preset('Acrobot-v1', 500_000, _discrete(), -100.0),
  'pendulum': _preset(
    'Pendulum-v1', 1_000_000, _continuous(32, gamma=0.95, reward_scale=0.1)
  ),
  'inverted_pendulum': _preset(
    'InvertedPendulum-v5',
    400_000,
    # By trial: with values up to 100, the value gradient is so large that after
    # clipping nearly nothing is left of the policy gradient.
    _continuous(32, reward_scale=0.1),
    **_mujoco.RUN,
  ),
  'inverted_double_pendulum': _preset(
    'InvertedDoublePendulum-v5',
    600_000,
    _continuous(32, reward_scale=0.1),
    **_mujoco.RUN,
  ),
  'reacher': _preset(
    'Reacher-v5', 600_000, _continuous(25, gamma=0.98), **_mujoco.RUN
  ),
  'hopper': _preset(
    'Hopper-v5',
    1_000_000,
    _continuous(64, reward_scale=0.1, **_LARGE),
    **_mujoco.RUN,
    eval_episodes=5,
  ),
  'swimmer': _preset(
    'Swimmer-v5',
    1_000_000,
    _continuous(64, learning_rate=3e-4, normalize_observations=True),
    **_mujoco.RUN,
    eval_episodes=5,
  ),
  'humanoid_standup': _preset(
    'HumanoidStandup-v5',
    1_000_000,
    _continuous(64, reward_scale=0.01, **_LARGE),
    **_mujoco.RUN,
    eval_episodes=5,
  ),
}

AGENT = registry.Agent(
  name='a3c',
  title='A3C',
  agent=a2c.A2C,
  config=a2c.Config,
  topology='parameter_server',
  presets=PRESETS,
)
