"""What `make swarm` takes to solve CartPole-v1, from its start to its exit.

The command of `make swarm` with a seed, a temporary run directory, and a limit
on the wall clock for the case that it never gets there. `make bench` does one
seed; --full does seeds 0 to 4.
"""

from __future__ import annotations

import argparse
import sys

from murmuration.run_records import jsonable
from tests.benchmarks import common

_GOAL_S = 180.0
_END_S = 60.0  # for start and stop, beside the limit


def solve(seed: int, limit_s: float) -> dict:
  """Runs one seed to its end."""
  with common.swarm_run(
    f'--seed={seed}', f'--config.run.wall_clock_s={limit_s:g}'
  ) as run:
    exit_code = run.wait(limit_s + _END_S)
    seconds = run.elapsed_s()
    path = run.directory / 'summary.json'
    summary = jsonable.read(path) if path.exists() else {}
  totals = summary.get('totals', {})
  return {
    'seed': seed,
    'seconds': seconds,
    'exit_code': exit_code,
    'outcome': summary.get('outcome', 'no summary'),
    'R_star': summary.get('result', {}).get('R_star'),
    'actor_steps': totals.get('actor_steps', 0),
    'learner_steps': totals.get('learner_steps', 0),
  }


def main() -> int:
  args = common.arguments(__doc__, _define)
  seeds = args.seeds or common.choose(args, [0], [0], [0, 1, 2, 3, 4])
  limit_s = common.choose(args, 20.0, 180.0, 240.0)
  common.warn_if_busy()
  found = []
  for seed in seeds:
    found.append(solve(seed, limit_s))
    print(f'seed {seed}: {found[-1]["seconds"]:.0f} s', flush=True)
  solved = sum(
    r['outcome'] == 'goal' and r['exit_code'] == 0 and r['seconds'] <= _GOAL_S
    for r in found
  )
  rows = [
    (
      r['seed'],
      f'{r["seconds"]:.1f}',
      '-' if r['exit_code'] is None else r['exit_code'],
      r['outcome'],
      '-' if r['R_star'] is None else f'{r["R_star"]:.1f}',
      f'{r["actor_steps"]:,}',
      f'{r["learner_steps"]:,}',
    )
    for r in found
  ]
  common.publish(
    common.Result(
      'Time to solve CartPole-v1 by `make swarm`',
      [
        common.table(
          (
            'seed',
            'start to exit, s',
            'exit code',
            'ended by',
            'confirmed R*',
            'env steps',
            'member-updates',
          ),
          rows,
        )
      ],
      [
        f'{solved} of {len(seeds)} seeds ended by themselves, with a confirmed '
        f'return of 475, within {_GOAL_S:g} s; needed 4 of 5.',
      ],
      {'runs': found, 'solved': solved},
    ),
    args,
  )
  return 0


def _define(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--seeds', type=int, nargs='+', help='default 0')


if __name__ == '__main__':
  sys.exit(main())
