"""From launch to the first learner update, against one import of TensorFlow.

The clock starts before the process is made and is read again by the worker
right after its first update (metrics/first_update.jsonl). In turns with it, in
the same run of this script: `python -c 'import tensorflow'`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from tests.benchmarks import common

_LIMIT_S = 180.0
_FORMS = {
  '31 explorers, 16 per node (default)': (),
  '8 explorers, one per node': (
    '--config.swarm.num_explorers=8',
    '--config.swarm.explorers_per_node=1',
  ),
}
_NODES = (2, 8)


def import_tensorflow() -> float:
  """Seconds that one import takes, interpreter included."""
  started = time.monotonic()
  subprocess.run(
    [sys.executable, '-c', 'import tensorflow'],
    check=True,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'},
    stderr=subprocess.DEVNULL,
  )
  return time.monotonic() - started


def launch(flags, num_nodes: int) -> tuple[float, float]:
  """Seconds to the first update of the first and of the last node."""
  with common.swarm_run(
    *flags, common.NO_TARGET, '--config.run.wall_clock_s=200'
  ) as run:

    def all_learn():
      rows = run.learning()
      return rows if len({r['node'] for r in rows}) == num_nodes else None

    rows = run.wait_for('update of every node', all_learn, _LIMIT_S)
    times = [row['unix_time_s'] - run.started_at for row in rows]
    return min(times), max(times)


def main() -> int:
  args = common.arguments(__doc__)
  common.warn_if_busy()
  import_tensorflow()  # so that nobody pays for a cold disk
  rows = []
  ratios: dict[str, list[float]] = {form: [] for form in _FORMS}
  for repetition in range(common.choose(args, 1, 2, 5)):
    for (form, flags), num_nodes in zip(_FORMS.items(), _NODES):
      import_s = import_tensorflow()
      first_s, last_s = launch(flags, num_nodes)
      ratios[form].append(first_s / import_s)
      rows.append(
        (
          repetition + 1,
          form,
          f'{import_s:.2f}',
          f'{first_s:.2f}',
          f'{first_s / import_s:.2f}',
          f'{last_s:.2f}',
          f'{last_s / import_s:.2f}',
        )
      )
      print(f'{form}: {first_s:.1f} s, {rows[-1][4]} imports', flush=True)
  notes = [
    f'{form}: median {statistics.median(found):.2f} imports of TensorFlow to '
    'the first update; needed at most 2.'
    for form, found in ratios.items()
  ]
  common.publish(
    common.Result(
      'From launch to the first learner update',
      [
        common.table(
          (
            'repetition',
            'program',
            'import tensorflow, s',
            'first update, s',
            'ratio',
            'last node, s',
            'ratio of the last',
          ),
          rows,
        )
      ],
      notes,
      {'ratios': ratios},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
