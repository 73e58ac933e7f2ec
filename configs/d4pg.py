"""D4PG: presets for each environment.

  python launch/run.py d4pg:hopper

Values are small-scale; docs/agents/d4pg.md lists them beside the paper's. [T]
marks values chosen by trial.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import d4pg
from murmuration.configs import _mujoco
from murmuration.launch import registry

_LARGE: dict[str, Any] = {
  'policy_sizes': (256, 256),
  'critic_sizes': (256, 256),
  'policy_learning_rate': 1e-4,
  'critic_learning_rate': 3e-4,
  'n_step': 5,
  'batch_size': 128,
  'max_replay_size': 1_000_000,
  'min_replay_size': 5_000,
}

# One update for four environment steps, of 64 or 128 transitions.
_SMALL_PACE = {'samples_per_insert': 16.0}
_LARGE_PACE = {'samples_per_insert': 32.0}

PRESETS: dict[str, dict[str, Any]] = {
  'pendulum': {
    'environment': 'Pendulum-v1',
    'pace': _SMALL_PACE,
    'agent': {
      'sigma': 0.3,
      'min_replay_size': 500,
      'random_steps': 1_000,
      # [T] With 0.99, and the support of 165 that it needs, atoms are 3.3
      # apart, half of what a good policy is worth, and 3 of 10 seeds ended
      # below -200. With 0.95, seeds 106 to 113 all end above -170.
      'gamma': 0.95,
      # [T] In one pair of runs, seed 0: without it, half of the policy's tanh
      # units saturate, and the mean of the last three evaluations is -764
      # instead of -152.
      'normalize_observations': True,
      'reward_scale': 0.1,
      'v_min': -33.0,
      'v_max': 0.0,
      # -(pi^2 + 0.1 * 8^2 + 0.001 * 2^2), from gymnasium's reward.
      'reward_min': -16.274,
      'reward_max': 0.0,
    },
    'run': {'steps_per_agent': 30_000},
  },
  'inverted_pendulum': {
    'environment': 'InvertedPendulum-v5',
    'pace': _SMALL_PACE,
    'agent': {
      'sigma': 0.5,  # [T] docs/agents/d4pg.md#results
      'v_min': 0.0,
      'v_max': 100.0,
      'reward_min': 0.0,
      'reward_max': 1.0,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 50_000},
  },
  'inverted_double_pendulum': {
    'environment': 'InvertedDoublePendulum-v5',
    'pace': _SMALL_PACE,
    'agent': {
      'reward_scale': 0.1,
      'v_min': 0.0,
      'v_max': 100.0,
      'reward_max': 10.0,  # for staying alive; all other terms are costs
      # Unstable: 4 of 5 seeds end above 9,000. If rates fall over the second
      # half, 4 of 5 do, and with TD3's options as well, 3 of 5.
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 100_000},
  },
  'reacher': {
    'environment': 'Reacher-v5',
    'pace': _SMALL_PACE,
    'agent': {
      # [T] Mean of 200 episodes in single runs: -4.4 with these values and -5.2
      # with gamma 0.98; with one-step returns -6.2, and -4.9 with 0.98.
      'normalize_observations': True,
      'policy_learning_rate': 5e-4,
      'anneal_after': 25_000,
      'anneal_updates': 50_000,
      'gamma': 0.95,
      # [T] Too narrow for the worst rewards; the run starts with a warning.
      'v_min': -15.0,
      'v_max': 0.0,
      # -(0.21 for the arm + 0.2 for the target + 1^2 + 1^2 for the torques).
      'reward_min': -2.41,
      'reward_max': 0.0,
    },
    # [T] With 100,000 and half the updates, 1 of 5 seeds reaches -5.
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000},
  },
  'hopper': {
    'environment': 'Hopper-v5',
    'pace': _LARGE_PACE,
    'agent': {
      **_LARGE,
      'reward_scale': 0.1,
      'v_min': -5.0,
      'v_max': 50.0,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 300_000, 'eval_episodes': 5},
  },
  'swimmer': {
    'environment': 'Swimmer-v5',
    'pace': _LARGE_PACE,
    'agent': {
      **_LARGE,
      'policy_sizes': (64, 64),
      'critic_sizes': (64, 64),
      'sigma': 0.3,
      'v_min': -10.0,
      'v_max': 40.0,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 300_000, 'eval_episodes': 5},
  },
  # A random policy has -1.5 per step, over 100 steps.
  'pusher': {
    'environment': 'Pusher-v5',
    'pace': _LARGE_PACE,
    'agent': {
      **_LARGE,
      'gamma': 0.98,
      'normalize_observations': True,
      # -1.5 / (1 - 0.98), as in the published runs. They warn while they learn,
      # because some rewards are worse.
      'v_min': -75.0,
      'v_max': 0.0,
      'reward_max': 0.0,  # there is no reward_min: objects can slide away
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000},
  },
  'humanoid_standup': {
    'environment': 'HumanoidStandup-v5',
    'pace': _LARGE_PACE,
    'agent': {
      **_LARGE,
      'sigma': 0.3,
      'reward_scale': 0.01,
      'v_min': 0.0,
      'v_max': 250.0,
      # Costs are 10.3 at most; the torso's 0.07 m over 0.003 s give 23.
      'reward_min': 0.0,
      # A million transitions with observations of 348 numbers take 2.9 GB.
      'max_replay_size': 200_000,
    },
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000, 'eval_episodes': 5},
  },
}

AGENT = registry.Agent(
  name='d4pg',
  title='D4PG',
  agent=d4pg.D4PG,
  config=d4pg.Config,
  topology='actor_learner',
  presets=PRESETS,
)
