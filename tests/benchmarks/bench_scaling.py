"""How IMPALA's environment steps per second grow with its actors.

CartPole-v1, 64 x 64, with learning, as in bench_impala.py: one to three actors
of 4, 16 and 64 environments. An actor is one process with one thread, so a core
more for acting helps as long as there is one.
"""

from __future__ import annotations

import collections
import os
import pathlib
import statistics
import sys

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from tests.benchmarks import bench_impala  # noqa: E402
from tests.benchmarks import common  # noqa: E402

_ACTORS = (1, 2, 3)
_ENVS = (4, 16, 64)


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 1, 3)
  window_s = common.choose(args, 5.0, 10.0, 20.0)
  common.warn_if_busy()
  found: dict[tuple[int, int], list[float]] = collections.defaultdict(list)
  for _ in range(repetitions):
    for envs in _ENVS:
      for actors in _ACTORS:
        rates = bench_impala.measure(bench_impala.sized(actors, envs), window_s)
        steps = rates['env_steps_per_s']
        found[envs, actors].append(steps)
        print(f'{actors} x {envs}: {steps:,.0f} steps/s', flush=True)
  rows, notes = [], []
  for envs in _ENVS:
    medians = [statistics.median(found[envs, n]) for n in _ACTORS]
    rows.append(
      (
        envs,
        *(' '.join(f'{s:,.0f}' for s in found[envs, n]) for n in _ACTORS),
      )
    )
    notes.append(
      f'{envs} environments: two actors are {medians[1] / medians[0]:.2f} '
      f'times one, three {medians[2] / medians[0]:.2f} times.'
    )
  notes += [
    f'{os.cpu_count()} cores, which learner, queue and evaluator use as well.',
    f'Window: {window_s:g} s after the first update.',
  ]
  common.publish(
    common.Result(
      'IMPALA with one, two and three actors, CartPole-v1',
      [
        common.table(
          ('environments of an actor', '1 actor', '2 actors', '3 actors'), rows
        )
      ],
      notes,
      {'steps_per_s': {f'{n} x {e}': v for (e, n), v in found.items()}},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
