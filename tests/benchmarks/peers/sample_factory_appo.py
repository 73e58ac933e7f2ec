"""One peer: Sample Factory's APPO on CartPole-v1, at the fastest known setting.

  .peers/sample_factory/bin/python tests/benchmarks/peers/sample_factory_appo.py

Environments of EnvPool, stepped in batches, asynchronously: 2 workers x 2 pools
(one acts while the other waits for actions) x 128 environments, batch 2,048:
what its own EnvPool examples (sf_examples/envpool) do, with two workers.
--environments=gymnasium is the setting of its CartPole example
(sf_examples/train_gym_env.py): 2 workers x 20 environments, batch 512, about a
tenth as fast. 64x64 without memory, each step used once, in both.
Needs an environment of its own:
`python requirements/environment.py sample_factory`.
"""

from __future__ import annotations

import sys

import envpool
import gymnasium
import numpy as np
from sample_factory import train
from sample_factory.algo.runners import runner as runners
from sample_factory.cfg import arguments
from sample_factory.envs import env_utils

# From beside this file: packages here may bring a `tests` of their own.
import window

_TASK = 'CartPole-v1'
_WORKERS, _POOLS, _POOL = 2, 2, 128
_ALONE = 20  # environments of a worker without EnvPool
_PACKAGES = ['sample-factory', 'envpool', 'torch', 'numpy', 'gymnasium']


class _Watch(runners.AlgoObserver):
  """Shows the counts to the window after every update."""

  def __init__(self, view: window.Window):
    self._view = view

  def on_training_step(self, runner, training_iteration_since_resume) -> None:
    # Steps that the learner has received; what actors are ahead is not in it.
    env_steps = sum(runner.env_steps.values())
    if not self._view.see(env_steps, training_iteration_since_resume):
      runner.cfg.train_for_env_steps = 0  # which ends the run


class _Pool(gymnasium.Wrapper):
  """128 environments that begin anew in the step in which they end."""

  def __init__(self, seed: int):
    super().__init__(
      envpool.make(
        _TASK,
        env_type='gymnasium',
        num_envs=_POOL,
        batch_size=_POOL,
        num_threads=1,  # the workers are processes
        seed=seed,
      )
    )
    self.num_agents = _POOL

  def reset(self, **kwargs):
    return self.env.reset()  # EnvPool takes its seed when it is made

  def close(self):
    """Nothing: EnvPool's own fails under the gymnasium of Sample Factory."""

  def step(self, actions):
    observation, reward, terminated, truncated, info = self.env.step(actions)
    ended = np.flatnonzero(terminated | truncated).astype(np.int32)
    if ended.size:
      observation = np.array(observation)
      # By itself EnvPool spends a step, which counts, on beginning anew.
      observation[ended], _ = self.env.reset(ended)
    return observation, reward, terminated, truncated, info


def _make_environment(name, cfg=None, env_config=None, render_mode=None):
  if cfg.batched_sampling:
    return _Pool(env_config.env_id if env_config else 0)
  return gymnasium.make(name, render_mode=render_mode)


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument(
    '--environments', choices=('envpool', 'gymnasium'), default='envpool'
  )
  args = parser.parse_args()
  pooled = args.environments == 'envpool'
  batch = 2048 if pooled else 512
  view = window.Window(args.seconds)
  env_utils.register_env(_TASK, _make_environment)
  with window.scratch() as directory:
    flags = [
      '--algo=APPO',
      f'--env={_TASK}',
      '--experiment=peer',
      f'--train_dir={directory}',
      '--device=cpu',
      f'--num_workers={_WORKERS}',
      f'--num_envs_per_worker={_POOLS if pooled else _ALONE}',
      '--worker_num_splits=2',
      f'--batched_sampling={pooled}',
      '--async_rl=True',
      f'--batch_size={batch}',
      '--use_rnn=False',
      '--recurrence=1',
      '--with_vtrace=False',
      '--reward_scale=0.1',
      '--encoder_mlp_layers',
      '64',
      '64',
    ]
    sf_parser, _ = arguments.parse_sf_args(argv=flags)
    sf_config = arguments.parse_full_cfg(sf_parser, flags)
    _, runner = train.make_runner(sf_config)
    runner.register_observer(_Watch(view))
    runner.init()
    runner.run()
  window.report(
    view.result(
      'sample_factory',
      _TASK,
      f'{_WORKERS} workers x '
      + (
        f'{_POOLS} EnvPools x {_POOL} environments'
        if pooled
        else f'{_ALONE} environments'
      ),
      batch,
      _PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
