"""Our own systems before and after: the rates of two commits, in turns.

python tests/benchmarks/compare_commits.py BEFORE [AFTER]

Clones both commits and measures each with its own bench_swarm, bench_apex,
bench_impala and bench_control, but with the packages of this checkout. AFTER is
HEAD unless it is said. The exit code is 1 where a median is more than 5% worse.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from tests.benchmarks import common

_ALLOWED = 0.95  # of the rate before
_LIMIT_S = 600.0  # of one measurement
# What a clone runs: one system, and its rates as the last line.
_MEASURE = """
import json, sys
sys.path[0] = sys.argv[1]
from tests.benchmarks import (
  bench_apex, bench_control, bench_impala, bench_swarm, common)
window_s = float(sys.argv[3])
d4pg = ('node_learner', 'node_actor', window_s)
worker = ('node_worker', 'node_worker', window_s)
print(json.dumps({
  'swarm': lambda: bench_swarm.measure(31, 16, window_s),
  'apex': lambda: common.actors_and_learner(bench_apex.RATIO, window_s),
  'apex_free': lambda: common.actors_and_learner(bench_apex._FREE, window_s),
  'impala': lambda: bench_impala.measure(bench_impala._PRESET, window_s),
  'impala_wide': lambda: bench_impala.measure(bench_impala._WIDE, window_s),
  'd4pg': lambda: bench_control.measure(bench_control._PACED, *d4pg),
  'd4pg_free': lambda: bench_control.measure(bench_control._FREE, *d4pg),
  'ddpg': lambda: bench_control.measure(bench_control._DDPG, *worker),
}[sys.argv[2]]()))
"""
_STEPS, _UPDATES = 'env_steps_per_s', 'updates_per_s'
# Name of a system: what it is, and the rates that it is about. Where actors and
# learner run freely, one has what the other leaves: both are told.
_SYSTEMS = {
  'swarm': ('swarm of 31 in 2 nodes', (_UPDATES,)),
  'apex': ('Ape-X, 32 samples per insert', (_STEPS,)),
  'apex_free': ('Ape-X, free-running', (_STEPS, _UPDATES)),
  'impala': ('IMPALA, 2 x 32', (_STEPS,)),
  'impala_wide': ('IMPALA, 2 x 64', (_STEPS,)),
  'd4pg': ('D4PG, 32 samples per insert', (_UPDATES,)),
  'd4pg_free': ('D4PG, free-running', (_STEPS, _UPDATES)),
  'ddpg': ('DDPG, one process', (_UPDATES,)),
}


def _clone(commit: str, directory: pathlib.Path) -> pathlib.Path:
  for command in (
    ('clone', '--quiet', '--no-checkout', str(common.ROOT), str(directory)),
    ('-C', str(directory), 'checkout', '--quiet', commit),
  ):
    subprocess.run(('git', *command), check=True)
  return directory


def _measure(
  clone: pathlib.Path, system: str, window_s: float
) -> dict[str, float]:
  done = subprocess.run(
    (sys.executable, '-c', _MEASURE, str(clone), system, str(window_s)),
    cwd=clone,
    env={**os.environ, 'PYTHONPATH': str(clone)},
    stdout=subprocess.PIPE,
    text=True,
    timeout=_LIMIT_S,
    check=True,
  )
  rates = json.loads(done.stdout.splitlines()[-1])
  return {name: rates[name] for name in _SYSTEMS[system][1]}


def _define(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('before', help='a commit, as git names it')
  parser.add_argument('after', nargs='?', default='HEAD', help='another one')
  parser.add_argument(
    '--systems',
    default=','.join(_SYSTEMS),
    help=f'of {", ".join(_SYSTEMS)}; all unless said',
  )


def main() -> int:
  args = common.arguments(__doc__, _define)
  repetitions = common.choose(args, 1, 3, 5)
  window_s = common.choose(args, 6.0, 12.0, 20.0)
  systems = args.systems.split(',')
  common.warn_if_busy()
  found: dict[tuple[str, str], dict[str, list[float]]] = {
    (system, rate): {'before': [], 'after': []}
    for system in systems
    for rate in _SYSTEMS[system][1]
  }
  with tempfile.TemporaryDirectory(prefix='bench-') as directory:
    clones = {
      side: _clone(commit, pathlib.Path(directory, side))
      for side, commit in (('before', args.before), ('after', args.after))
    }
    for repetition in range(repetitions):
      for system in systems:
        # Neither is always the first.
        for side in sorted(clones, reverse=repetition % 2 == 0):
          rates = _measure(clones[side], system, window_s)
          for name, rate in rates.items():
            found[system, name][side].append(rate)
            print(f'{system}, {side}: {rate:,.0f} {name}', flush=True)
  ratios = {
    f'{_SYSTEMS[system][0]}: {rate}': statistics.median(rates['after'])
    / statistics.median(rates['before'])
    for (system, rate), rates in found.items()
  }
  rows = [
    (
      name,
      *(' '.join(f'{rate:,.0f}' for rate in rates[side]) for side in clones),
      f'{ratio:.2f}',
    )
    for (name, ratio), rates in zip(ratios.items(), found.values(), strict=True)
  ]
  worse = [name for name, ratio in ratios.items() if ratio < _ALLOWED]
  common.publish(
    common.Result(
      f'{args.before} and {args.after}',
      [common.table(('run', *clones, 'median, after / before'), rows)],
      [
        f'Window: {window_s:g} s from some seconds after the first update.',
        f'More than 5% worse: {"; ".join(worse) or "none"}.',
      ],
      {},
    ),
    args,
  )
  return int(bool(worse))


if __name__ == '__main__':
  sys.exit(main())
