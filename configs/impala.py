"""IMPALA, and IMPASS for continuous actions: presets for each environment.

  python launch/run.py impala:pendulum

Unless marked otherwise, values are small-scale (docs/agents/impala.md and
impass.md). `run.steps_per_agent` counts the environment steps of all actors.
"""

from __future__ import annotations

from typing import Any

from murmuration.agents import impala
from murmuration.configs import _mujoco
from murmuration.launch import registry

_CARTPOLE_STEPS = 200_000
_ACROBOT_STEPS = 400_000

# With a shared torso and values near 100, the gradient of the value loss
# overwhelms the policy's, so rewards are scaled. By trial, 200k steps on
# CartPole-v1: 10 of 10 seeds end at 500; unscaled, one seed ended at 190.
# The paper's gradient norm of 40 is for a loss summed over the batch, 160 times
# this one. In trials on CartPole-v1, seeds 20 to 27, all ended at 500 with a
# norm of 1, and at 495 to 500 with 40 (of seeds 0 to 9, one ended at 472).
_DISCRETE: dict[str, Any] = {
  'unroll_length': 20,
  'batch_size': 8,
  'reward_scale': 0.1,
  'max_gradient_norm': 1.0,
}


def _impass(steps: int, **agent) -> dict[str, Any]:
  """IMPASS (docs/agents/impass.md) over `steps` environment steps.

  Batches have 4 unrolls, because 16 leave too few updates, and torsos have 64
  units everywhere. In single trials on Hopper-v5, seed 10, 300,000 steps, 64
  units ended at 1,008, and 256 at 1, or at 259 with a rate of 1e-4.
  """
  return {
    'shared_torso': False,
    'stack': 4,
    'unroll_length': 32,
    'batch_size': 4,
    'learning_rate': 3e-4,
    'anneal_env_steps': steps,
    'trace_lambda': 0.95,
    'entropy_cost': 1e-3,
    'max_gradient_norm': 1.0,
    'normalize_advantages': True,
    **agent,
  }


# 32 environments share the costs of a policy call and of a queue item. Actors
# fetch parameters once per block of 20 steps.
_WIDE = {'envs_per_actor': 32, 'update_period': 640}
_NARROW = {'envs_per_actor': 8, 'update_period': 256}


_LONG = 1_000_000
# Two updates per call: in a trial on a busy machine, a batch was 2 to 8 updates
# old; with eight per call, 5 to 11. Not tried apart from the other changes.
_LONG_RUN = {
  **_mujoco.RUN,
  'steps_per_agent': _LONG,
  'eval_episodes': 5,
  'updates_per_call': 2,
}

# Atari: the paper's shallow model, unroll length and reward clipping; the other
# values were chosen by trial. --config.agent.lstm_size=256 adds the LSTM.
_PONG_STEPS = 2_000_000
_PONG: dict[str, Any] = {
  'environment': 'ALE/Pong-v5',
  # With 16 environments per policy call 1,570 steps/s, with 8 1,160 (one run of
  # each on an idle machine).
  'actors': {'envs_per_actor': 16, 'update_period': 320},
  'agent': {
    'network': 'shallow',
    'unroll_length': 20,
    'batch_size': 16,
    'learning_rate': 5e-4,
    'reward_clip': 1.0,
    'anneal_env_steps': _PONG_STEPS,
  },
  'run': {
    'steps_per_agent': _PONG_STEPS,
    'evaluations': 20,
    'eval_episodes': 2,
    'updates_per_call': 1,
  },
}

PRESETS: dict[str, dict[str, Any]] = {
  'cartpole': {
    'environment': 'CartPole-v1',
    'actors': _WIDE,
    'agent': {**_DISCRETE, 'anneal_env_steps': _CARTPOLE_STEPS},
    'run': {'steps_per_agent': _CARTPOLE_STEPS, 'target_return': 475.0},
  },
  'acrobot': {
    'environment': 'Acrobot-v1',
    'actors': _WIDE,
    'agent': {**_DISCRETE, 'anneal_env_steps': _ACROBOT_STEPS},
    'run': {'steps_per_agent': _ACROBOT_STEPS, 'target_return': -100.0},
  },
  'pendulum': {
    'environment': 'Pendulum-v1',
    # By trial, on seeds 100 to 105. A block is one update's batch, so that a
    # policy is few updates old: they end at -238 in the mean, all above -400.
    # With blocks of 8 environments, a queue of 4 and 8 updates in a call, and
    # sigmas from the network, they end at -487, and seeds 0 to 9 at -677. With
    # batches of 16 and a reward scale of 0.1 it stays at -1150.
    'actors': {'envs_per_actor': 2, 'update_period': 64, 'queue_batches': 1},
    'agent': _impass(
      500_000,
      batch_size=2,
      reward_scale=0.02,
      gamma=0.95,
      entropy_cost=0.0,
      normalize_advantages=False,
      tanh_mean=True,
      free_sigma=True,
    ),
    'run': {'steps_per_agent': 500_000, 'updates_per_call': 1},
  },
  'inverted_pendulum': {
    'environment': 'InvertedPendulum-v5',
    'actors': _NARROW,
    # By trial. The usual rate is 3e-4, with unscaled rewards. Without a floor
    # of sigma, it fell to 0.007 and 0.04 in two runs of ten, and these broke; 8
    # seeds ended at 1000. Of seeds 100 to 105, 5 did, and all with this floor.
    'agent': _impass(
      200_000, learning_rate=1e-3, reward_scale=0.05, sigma_min=0.1
    ),
    'run': {**_mujoco.RUN, 'steps_per_agent': 200_000},
  },
  'hopper': {
    'environment': 'Hopper-v5',
    'actors': _NARROW,
    'agent': _impass(
      _LONG,
      reward_scale=0.1,
      normalize_observations=True,
    ),
    'run': _LONG_RUN,
  },
  'swimmer': {
    'environment': 'Swimmer-v5',
    'actors': _NARROW,
    'agent': _impass(_LONG, normalize_observations=True),
    'run': _LONG_RUN,
  },
  # Replaces the paper's Striker, which gymnasium no longer has.
  'pusher': {
    'environment': 'Pusher-v5',
    'actors': _NARROW,
    'agent': _impass(
      500_000, reward_scale=0.1, gamma=0.98, normalize_observations=True
    ),
    'run': {**_mujoco.RUN, 'steps_per_agent': 500_000, 'updates_per_call': 2},
  },
  'humanoid_standup': {
    'environment': 'HumanoidStandup-v5',
    'actors': _NARROW,
    'agent': _impass(
      _LONG,
      reward_scale=0.01,
      entropy_cost=1e-4,
      normalize_observations=True,
    ),
    'run': _LONG_RUN,
  },
  'pong': _PONG,
}

AGENT = registry.Agent(
  name='impala',
  title='IMPALA',
  agent=impala.IMPALA,
  config=impala.Config,
  topology='actor_learner',
  presets=PRESETS,
)
