"""One peer that learns: Stable-Baselines3's SAC, for sb3_sac_study.py.

  .peers/sb3/bin/python tests/benchmarks/peers/sb3_sac.py settings.json out/

Keeps the policy's numbers after every `period` environment steps, in
out/STEPS.npz, and plays no episodes to evaluate: who started it does.
Needs an environment of its own: `python requirements/environment.py sb3`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import sys
import time

import numpy as np
import stable_baselines3
from stable_baselines3.common import callbacks
import torch

_PACKAGES = ('stable-baselines3', 'torch', 'numpy', 'gymnasium', 'mujoco')


class _Keep(callbacks.BaseCallback):
  """Writes the policy now and then."""

  def __init__(self, directory: pathlib.Path, period: int):
    super().__init__()
    self._directory, self._period = directory, period
    self._began = time.monotonic()

  def _on_step(self) -> bool:
    # Called before the update of its step; so the last one is not in it.
    if self.num_timesteps % self._period == 0:
      self._write()
    return True

  def _write(self) -> None:
    actor = self.model.actor
    layers = [
      layer
      for layer in (*actor.latent_pi, actor.mu)
      if isinstance(layer, torch.nn.Linear)
    ]
    arrays = {'elapsed_s': np.array(time.monotonic() - self._began)}
    arrays['updates'] = np.array(self.model._n_updates)
    for i, layer in enumerate(layers):
      arrays[f'weights_{i}'] = layer.weight.detach().numpy().T
      arrays[f'bias_{i}'] = layer.bias.detach().numpy()
    new = self._directory / 'new.npz'
    np.savez(new, **arrays)
    os.replace(new, self._directory / f'{self.num_timesteps}.npz')


def main() -> int:
  settings = json.loads(pathlib.Path(sys.argv[1]).read_text())
  directory = pathlib.Path(sys.argv[2])
  torch.set_num_threads(1)
  model = stable_baselines3.SAC(
    'MlpPolicy', settings['task'], device='cpu', **settings['model']
  )
  model.learn(settings['steps'], _Keep(directory, settings['period']))
  versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
  (directory / 'versions.json').write_text(json.dumps(versions))
  return 0


if __name__ == '__main__':
  sys.exit(main())
