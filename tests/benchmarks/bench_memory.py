"""Peak memory of the default program: the sum of proportional set sizes.

Twice a second, over the launcher and all processes under it (smaps_rollup), so
that pages which forked nodes share count once. The program runs on without a
target, because replay goes on filling.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time

import psutil

from tests.benchmarks import common

_PERIOD_S = 0.5
_LIMIT_GB = 2.5


def pss(process: psutil.Process) -> int:
  """Proportional set size in bytes; 0 if the process has just ended."""
  path = pathlib.Path(f'/proc/{process.pid}/smaps_rollup')
  with contextlib.suppress(OSError):
    for line in path.read_text().splitlines():
      if line.startswith('Pss:'):
        return 1024 * int(line.split()[1])
  return 0


def sample(run: common.Run) -> list[tuple[str, int]]:
  """Name and PSS of each process."""
  found = []
  for process in run.processes():
    with contextlib.suppress(psutil.Error):
      name = 'launcher' if process.pid == run.process.pid else process.name()
      found.append((name, pss(process)))
  return found


def main() -> int:
  args = common.arguments(__doc__)
  seconds = common.choose(args, 10, 45, 110)
  common.warn_if_busy()
  peak, at_s, total, count = [], 0.0, 0, 0
  with common.swarm_run(
    common.NO_TARGET, f'--config.run.wall_clock_s={seconds}'
  ) as run:
    while run.process.poll() is None and run.elapsed_s() < seconds + 60:
      began = time.monotonic()
      now = sample(run)
      count += 1
      if sum(size for _, size in now) > total:
        peak, at_s = now, run.elapsed_s()
        total = sum(size for _, size in peak)
      time.sleep(max(0.0, _PERIOD_S - (time.monotonic() - began)))
    filled = [row['replay_size'] for row in run.rows('node_explorer')[-2:]]
  rows = [(name, f'{size / 1e6:,.0f}') for name, size in peak]
  rows.append(('sum', f'{total / 1e6:,.0f}'))
  common.publish(
    common.Result(
      'Peak memory of the default program',
      [common.table(('process', 'PSS at the peak, MB'), rows)],
      [
        f'Peak of the sum: {total / 1e9:.2f} GB, {at_s:.0f} s after the start; '
        f'needed at most {_LIMIT_GB} GB.',
        f'{count} samples over {seconds} s of running; at the end each '
        f'explorer node held {" and ".join(f"{n:,}" for n in filled)} steps '
        'of its members in replay.',
      ],
      {'peak_bytes': total, 'peak_at_s': at_s},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
