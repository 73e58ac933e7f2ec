"""One peer: RLlib's IMPALA or DQN on CartPole-v1, on its new API stack.

  .peers/rllib/bin/python tests/benchmarks/peers/rllib_agents.py \
    --algorithm dqn --address 127.0.0.1:6379

64x64, two env runners of gymnasium's environments. impala: as RLlib's own
CartPole example (batch 500, fragments of 50 steps), with more environments to a
runner. dqn: prioritized replay, double Q, n = 3, batch 256, 32 samples per
insert. RLlib has no Ape-X any more (it left with the old API stack): DQN with
several env runners and prioritized replay is what it offers instead.
--address is of a Ray that is there, of the same version and Python; without one
a Ray of its own is started.
Needs an environment of its own: `python requirements/environment.py rllib`.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray.rllib.algorithms import dqn
from ray.rllib.algorithms import impala
from ray.rllib.core.rl_module import default_model_config

# From beside this file: packages here may bring a `tests` of their own.
import window

_TASK = 'CartPole-v1'
_RUNNERS = 2
_BATCH = {'impala': 500, 'dqn': 256}
_REPORT_S = 0.5  # how often the counts are looked at
_PACKAGES = ['ray', 'torch', 'numpy', 'gymnasium']


def config(algorithm: str, envs: int) -> Any:
  """RLlib's config; the rest is its own choice."""
  network: dict[str, Any] = {'fcnet_hiddens': [64, 64]}
  made: Any
  if algorithm == 'impala':
    made = impala.IMPALAConfig().training(
      train_batch_size_per_learner=_BATCH['impala'],
      lr=0.0005,
      vf_loss_coeff=0.05,
      entropy_coeff=0.0,
    )
    network['vf_share_layers'] = True
    fragment = 50
  else:
    made = dqn.DQNConfig().training(
      train_batch_size_per_learner=_BATCH['dqn'],
      lr=0.001,
      n_step=3,
      double_q=True,
      dueling=False,
      epsilon=0.05,
      # RLlib counts a runner more than there are (calculate_rr_weights).
      training_intensity=32.0 * _RUNNERS / (_RUNNERS + 1),
      num_steps_sampled_before_learning_starts=1_000,
      target_network_update_freq=800,
      replay_buffer_config={
        'type': 'PrioritizedEpisodeReplayBuffer',
        'capacity': 100_000,
        'alpha': 0.6,
        'beta': 0.4,
      },
    )
    network['head_fcnet_hiddens'] = []
    fragment = 4
  return (
    made.environment(_TASK)
    .env_runners(
      num_env_runners=_RUNNERS,
      num_envs_per_env_runner=envs,
      rollout_fragment_length=fragment,
    )
    .rl_module(model_config=default_model_config.DefaultModelConfig(**network))
    .reporting(
      min_time_s_per_iteration=_REPORT_S,
      min_train_timesteps_per_iteration=0,
      min_sample_timesteps_per_iteration=0,
    )
  )


def counts(result: dict[str, Any]) -> tuple[int, int]:
  """Environment steps and steps that were trained on, since the start."""
  steps = result.get('env_runners', {}).get('num_env_steps_sampled_lifetime', 0)
  learned = result.get('learners', {}).get('__all_modules__', {})
  return int(steps), int(learned.get('num_env_steps_trained_lifetime', 0))


def main() -> int:
  parser = window.parser(__doc__)
  parser.add_argument('--algorithm', choices=_BATCH, default='impala')
  parser.add_argument('--address', default='', help='of a Ray that is there')
  parser.add_argument('--envs', type=int, default=10, help='of a runner')
  args = parser.parse_args()
  view = window.Window(args.seconds)
  # Its processes have torch; the Ray that is there may have been started with
  # another environment.
  ray.init(
    address=args.address or None,
    runtime_env={'py_executable': sys.executable},
    include_dashboard=None if args.address else False,
    log_to_driver=False,
  )
  batch = _BATCH[args.algorithm]
  algorithm = config(args.algorithm, args.envs).build_algo()
  going = True
  while going:
    steps, trained = counts(algorithm.train())
    going = view.see(steps, trained // batch)
  window.report(
    view.result(
      f'rllib {args.algorithm}',
      _TASK,
      f'{_RUNNERS} env runners x {args.envs} environments',
      batch,
      _PACKAGES,
    )
  )
  algorithm.stop()
  ray.shutdown()
  return 0


if __name__ == '__main__':
  sys.exit(main())
