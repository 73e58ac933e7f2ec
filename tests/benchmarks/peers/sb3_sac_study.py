"""Runs Stable-Baselines3's SAC with the settings of ours, as a study's variant.

  python tests/benchmarks/peers/sb3_sac_study.py sac:pendulum \
    --run_dir=runs/sb3 --seed=1

For studies/declared.py: takes the flags of launch/run.py sac, and writes a run
directory that studies can read. SB3 learns (sb3_sac.py) in its own environment
(`python requirements/environment.py sb3`) with the numbers of the resolved
config, one update per environment step. Its policy is kept wherever ours would
be evaluated, and then plays episodes here as ours does: same code, same seeds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from typing import Any

# When run as a file, Python searches peers/ for modules first.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np

from murmuration import portable
from murmuration.agents import base
from murmuration.environment_loops import evaluation
from murmuration.launch import cell as cell_lib
from murmuration.launch import command_line
from murmuration.launch import registry
from murmuration.launch import session
from murmuration.launch.engines import linux
from murmuration.run_records import commands
from murmuration.run_records import jsonable
from murmuration.run_records import metrics
from murmuration.run_records import packages
from murmuration.run_records import run_directory

PYTHON = session.root() / '.peers' / 'sb3' / 'bin' / 'python'
SCRIPT = pathlib.Path(__file__).resolve().with_name('sb3_sac.py')
# Our settings that SB3's SAC lacks, with the values that it implies.
_ONLY = {
  'activation': 'relu',
  'optimizer': 'adam',
  'n_step': 1,
  'prioritized': False,
  'normalize_observations': False,
  'reward_scale': 1.0,
  'max_gradient_norm': None,
  'anneal_updates': None,
  'target_update_period': 1,
}


def main() -> int:
  parser = commands.Parser(__doc__)
  parser.add_argument('agent', metavar='sac:PRESET')
  parser.add_argument('--run_dir', type=pathlib.Path)
  parser.add_argument('--seed', type=commands.at_least(0), default=0)
  parser.add_argument('--print-config', action='store_true')
  parser.add_argument(
    '--config.SECTION.NAME', dest='unused', help=argparse.SUPPRESS
  )
  try:
    rest, changed = command_line.overrides(sys.argv[1:])
    args = parser.parse(rest)
    name, preset = registry.split(args.agent)
    cell = cell_lib.resolve(name, preset, 'single_process', changed, args.seed)
    config = {
      **cell.config,
      'agent_name': 'sb3_sac',
      'sb3': model_settings(cell.config),
    }
    if args.print_config:
      print(json.dumps(jsonable.encode(config), indent=2, sort_keys=True))
      return 0
    if args.run_dir is None:
      raise ValueError('--run_dir=PATH says where the run is kept.')
    if not PYTHON.exists():
      raise ValueError(
        f'{PYTHON} is not there: python requirements/environment.py sb3 '
        'makes it.'
      )
    run = run_directory.create(args.run_dir, config, packages.versions())
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  code = learn(cell, config['sb3'], run)
  evaluate(cell, run, code)
  return code


def model_settings(config: dict[str, Any]) -> dict[str, Any]:
  """Arguments of SB3's SAC, except its seed, from our resolved config.

  Raises:
    ValueError: the config has a setting that SB3's SAC cannot have.
  """
  agent = config['agent']
  for name, value in _ONLY.items():
    if agent[name] != value:
      raise ValueError(
        f"agent.{name}={agent[name]}: SB3's SAC stands for {value}. Compare "
        'with that.'
      )
  rates = {agent[f'{x}_learning_rate'] for x in ('policy', 'critic')}
  rates.add(agent['temperature_learning_rate'])
  waits = {agent['random_steps'], agent['min_replay_size']}
  ratio = config['pace']['samples_per_insert'] / agent['batch_size']
  for what, values in (
    ('one learning rate', rates),
    ('random actions until it learns', waits),
    ('one update for each environment step', {ratio, 1.0}),
  ):
    if len(values) > 1:
      raise ValueError(f"SB3's SAC has {what}; this config has {values}.")
  target = agent['target_entropy']
  return {
    'learning_rate': rates.pop(),
    'buffer_size': agent['max_replay_size'],
    'learning_starts': waits.pop(),
    'batch_size': agent['batch_size'],
    'tau': agent['target_update_tau'],
    'gamma': agent['gamma'],
    'train_freq': 1,
    'gradient_steps': 1,
    'ent_coef': f'auto_{agent["first_temperature"]}',
    'target_entropy': 'auto' if target is None else target,
    'policy_kwargs': {
      'net_arch': {
        'pi': list(agent['policy_sizes']),
        'qf': list(agent['critic_sizes']),
      }
    },
  }


def learn(
  cell: cell_lib.Cell,
  model: dict[str, Any],
  run: run_directory.RunDirectory,
) -> int:
  """Trains with SB3; returns its exit code."""
  settings = run.path / 'settings.json'
  jsonable.write(
    settings,
    {
      'task': cell.experiment.environment,
      'steps': cell.experiment.run.steps_per_agent,
      'period': cell.experiment.eval_period,
      'model': {**model, 'seed': cell.experiment.seed},
    },
  )
  with tempfile.TemporaryDirectory() as elsewhere:
    return subprocess.call(
      [PYTHON, SCRIPT, settings.absolute(), run.checkpoints.absolute()],
      cwd=elsewhere,
      env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
      stdin=subprocess.DEVNULL,
      preexec_fn=functools.partial(
        linux.die_with_parent, os.getpid(), signal.SIGTERM
      ),
    )


def evaluate(
  cell: cell_lib.Cell, run: run_directory.RunDirectory, code: int
) -> None:
  """Evaluates each policy that was kept, and writes rows as our runs do.

  `code` is the exit code of SB3: a run that crashed is scored up to the crash.
  """
  experiment = cell.experiment
  info = base.ActorInfo(0, 1, experiment.seed)
  writer = metrics.MetricsWriter(run.metrics_directory)
  rows: list[dict[str, Any]] = []
  # Excludes new.npz, which a crash may have left incomplete.
  files = run.checkpoints.glob('[0-9]*.npz')
  for path in sorted(files, key=lambda path: int(path.stem)):
    steps = int(path.stem)
    with np.load(path) as kept:
      arrays = dict(kept)
    result = evaluation.evaluate_vector(
      policy(arrays),
      experiment.environment,
      experiment.run.eval_episodes,
      base.actor_seed(info, f'evaluation at {steps}'),
      max_steps=experiment.eval_limit,
      on_fault=experiment.run.on_fault,
    )
    assert result is not None  # nothing stops it
    rows.append(
      {
        'actor_steps': steps,
        'return_mean': result.mean,
        'returns': result.returns,
        'broken_episodes': result.broken,
        'updates': int(arrays['updates']),
        'elapsed_s': round(float(arrays['elapsed_s']), 3),  # of learning only
      }
    )
    writer.row('evaluation', rows[-1])
  writer.close()
  if code or not rows:
    return
  jsonable.write(
    run.path / 'summary.json',
    {
      'finished': True,
      'reason': f'{experiment.run.steps_per_agent:,} environment steps',
      'outcome': 'budget',
      'elapsed_s': rows[-1]['elapsed_s'],
      'totals': {
        'actor_steps': experiment.run.steps_per_agent,
        'learner_steps': rows[-1]['updates'],
      },
      'versions': jsonable.read(run.checkpoints / 'versions.json'),
    },
  )


def policy(arrays: dict[str, np.ndarray]) -> base.Policy:
  """The mean of SB3's policy, tanh(mu(s)), as canonical actions."""
  count = sum(name.startswith('bias_') for name in arrays)
  operations: list[Any] = [['float']]
  for i in range(count):
    operations.append(['dense', arrays[f'bias_{i}'], arrays[f'weights_{i}']])
    operations.append(['relu'] if i + 1 < count else ['tanh'])
  return lambda x: portable.apply(np, operations, x, None, None)[0]


if __name__ == '__main__':
  sys.exit(main())
