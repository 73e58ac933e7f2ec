"""One peer: Stable-Baselines3's DQN, DDPG or A2C, one torch thread.

  .peers/sb3/bin/python tests/benchmarks/peers/sb3.py --algorithm ddpg

dqn: CartPole-v1, 64x64, batch 256, one update every 8 steps: 32 samples per
insert, uniform replay, n = 1. ddpg: Hopper-v5, 256x256, batch 256, one update
per step: 256 samples per insert. a2c: CartPole-v1, 64x64, --envs (16)
environments in one process, 5 steps.
Needs an environment of its own: `python requirements/environment.py sb3`.
"""

from __future__ import annotations

import sys

import numpy as np
import stable_baselines3
from stable_baselines3.common import callbacks
from stable_baselines3.common import env_util
from stable_baselines3.common import noise
import torch

# From beside this file: packages here may bring a `tests` of their own.
import window

_BATCH = 256
_TASKS = {'dqn': 'CartPole-v1', 'ddpg': 'Hopper-v5', 'a2c': 'CartPole-v1'}
_A2C_STEPS = 5
_PACKAGES = ['stable-baselines3', 'torch', 'numpy', 'gymnasium']


class _Watch(callbacks.BaseCallback):
  """Shows the counts to the window after every environment step."""

  def __init__(self, view: window.Window):
    super().__init__()
    self._view = view

  def _on_step(self) -> bool:
    return self._view.see(self.num_timesteps, self.model._n_updates)


def make_model(
  algorithm: str, task: str, batch_size: int, train_freq: int, envs: int
):
  if algorithm == 'a2c':
    return stable_baselines3.A2C(
      'MlpPolicy',
      env_util.make_vec_env(task, n_envs=envs, seed=0),
      n_steps=_A2C_STEPS,
      policy_kwargs={'net_arch': [64, 64]},
      seed=0,
      device='cpu',
    )
  if algorithm == 'dqn':
    return stable_baselines3.DQN(
      'MlpPolicy',
      task,
      learning_rate=1e-3,
      buffer_size=100_000,
      learning_starts=1_000,
      batch_size=batch_size,
      train_freq=train_freq,
      gradient_steps=1,
      target_update_interval=800,
      # A schedule over 10**9 steps would act at random, and without the
      # network, for the whole window, and look 1.4 times as fast.
      exploration_initial_eps=0.05,
      exploration_final_eps=0.05,
      policy_kwargs={'net_arch': [64, 64]},
      seed=0,
      device='cpu',
    )
  model = stable_baselines3.DDPG(
    'MlpPolicy',
    task,
    buffer_size=100_000,
    learning_starts=1_000,
    batch_size=batch_size,
    train_freq=1,
    gradient_steps=1,
    policy_kwargs={'net_arch': [256, 256]},
    seed=0,
    device='cpu',
  )
  shape = model.action_space.shape
  model.action_noise = noise.NormalActionNoise(
    np.zeros(shape), np.full(shape, 0.1)
  )
  return model


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--algorithm', choices=_TASKS, default='dqn')
  parser.add_argument('--task', help='default: CartPole-v1 or Hopper-v5')
  parser.add_argument('--batch_size', type=int, default=_BATCH)
  parser.add_argument(
    '--train_freq', type=int, default=8, help='steps per update of dqn'
  )
  parser.add_argument('--envs', type=int, default=16, help='of a2c')
  parser.add_argument(
    '--threads', type=int, default=1, help='of torch (default 1)'
  )
  args = parser.parse_args()
  task = args.task or _TASKS[args.algorithm]
  torch.set_num_threads(args.threads)
  view = window.Window(args.seconds)
  with window.scratch():
    model = make_model(
      args.algorithm, task, args.batch_size, args.train_freq, args.envs
    )
    model.learn(10**9, _Watch(view))
  environments, batch = 1, args.batch_size
  if args.algorithm == 'a2c':
    environments, batch = args.envs, args.envs * _A2C_STEPS
  window.report(
    view.result(
      f'sb3_{args.algorithm}',
      task,
      f'one process, environments: {environments}, torch threads: '
      f'{args.threads}',
      batch,
      _PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
