"""One peer: SBX's DDPG on Hopper-v5, Stable-Baselines3 in compiled JAX.

  .peers/sbx/bin/python tests/benchmarks/peers/sbx_ddpg.py

256x256, batch 256, one update per step, one environment: what sb3.py measures
with --algorithm ddpg.
Needs an environment of its own: `python requirements/environment.py sbx`.
"""

from __future__ import annotations

import sys

import numpy as np
import sbx
from stable_baselines3.common import callbacks
from stable_baselines3.common import noise

# From beside this file: packages here may bring a `tests` of their own.
import window

_TASK, _BATCH = 'Hopper-v5', 256
_PACKAGES = ['sbx-rl', 'jax', 'stable-baselines3', 'numpy', 'gymnasium']


class _Watch(callbacks.BaseCallback):
  """Shows the counts to the window after every environment step."""

  def __init__(self, view: window.Window):
    super().__init__()
    self._view = view

  def _on_step(self) -> bool:
    return self._view.see(self.num_timesteps, self.model._n_updates)


def make_model(task: str) -> sbx.DDPG:
  model = sbx.DDPG(
    'MlpPolicy',
    task,
    buffer_size=100_000,
    learning_starts=1_000,
    batch_size=_BATCH,
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
  parser.add_argument('--task', default=_TASK)
  args = parser.parse_args()
  view = window.Window(args.seconds)
  with window.scratch():
    make_model(args.task).learn(10**9, _Watch(view))
  window.report(
    view.result(
      'sbx_ddpg',
      args.task,
      "one process, 1 environment, XLA's own threads",
      _BATCH,
      _PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
