"""One peer: Sample Factory's APPO on CartPole-v1, 2 workers x 20 environments.

  .peers/sample_factory/bin/python tests/benchmarks/peers/sample_factory_appo.py

64x64 without memory, batch 512, each step used once: the settings of its own
CartPole example (sf_examples/train_gym_env.py), but for the network's size.
Needs an environment of its own:
`python requirements/peers/make.py sample_factory`.
"""

from __future__ import annotations

import sys

import gymnasium
from sample_factory import train
from sample_factory.algo.runners import runner as runners
from sample_factory.cfg import arguments
from sample_factory.envs import env_utils

# From beside this file: packages here may bring a `tests` of their own.
import window

_TASK = 'CartPole-v1'
_BATCH = 512
_WORKERS, _ENVIRONMENTS = 2, 20
_PACKAGES = ['sample-factory', 'torch', 'numpy', 'gymnasium']


class _Watch(runners.AlgoObserver):
  """Shows the counts to the window after every update."""

  def __init__(self, view: window.Window):
    self._view = view

  def on_training_step(self, runner, training_iteration_since_resume) -> None:
    # Steps that the learner has received; what actors are ahead is not in it.
    env_steps = sum(runner.env_steps.values())
    if not self._view.see(env_steps, training_iteration_since_resume):
      runner.cfg.train_for_env_steps = 0  # which ends the run


def _make_environment(name, cfg=None, env_config=None, render_mode=None):
  return gymnasium.make(name, render_mode=render_mode)


def main() -> int:
  args = window.parser(__doc__).parse_args()
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
      f'--num_envs_per_worker={_ENVIRONMENTS}',
      f'--batch_size={_BATCH}',
      '--use_rnn=False',
      '--recurrence=1',
      '--with_vtrace=False',
      '--reward_scale=0.1',
      '--encoder_mlp_layers',
      '64',
      '64',
    ]
    parser, _ = arguments.parse_sf_args(argv=flags)
    cfg, runner = train.make_runner(arguments.parse_full_cfg(parser, flags))
    runner.register_observer(_Watch(view))
    runner.init()
    runner.run()
  window.report(
    view.result(
      'sample_factory',
      _TASK,
      f'{_WORKERS} workers x {_ENVIRONMENTS} environments',
      _BATCH,
      _PACKAGES,
    )
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
