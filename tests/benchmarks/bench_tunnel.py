"""What the TLS tunnel between hosts costs Reverb: frames/s and CPU.

Blocks end to end as in bench_replay.py (a writer, a queue and a reader in three
processes), with two hosts that are addresses of this machine's loopback, so
that both tunnels share its cores. Directly; with the writer on the other host
(an actor, and a learner that has its queue); and with both beyond a tunnel (a
replay node of its own). Each with 16 blocks on their way and with 48: on two
cores every process that a block passes waits for its turn, so that frames/s are
what is on the way over how long it takes.

What the tunnel costs a run of several hosts: scaling_check.py --plain_replay.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile
from typing import Any

import psutil

from tests import loopback_hosts
from tests.benchmarks import bench_replay
from tests.benchmarks import common

_DIRECT = 'direct'
_WRITER = 'writer on another host: two tunnels, TLS'
_BOTH = 'the same, and the reader through the tunnel of its own host'
WAYS = (_DIRECT, _WRITER, _BOTH)
IN_FLIGHT = (16, 48)  # blocks
Found = dict[tuple[str, int], list[dict[str, Any]]]


def measure(
  one: loopback_hosts.Host,
  other: loopback_hosts.Host,
  way: str,
  name: str,
  in_flight: int,
  seconds: float,
) -> dict[str, float]:
  """Rates of one way from a writer on `one` to a queue on `other`.

  Returns:
    'frames_per_s', and 'cpu_us' of both tunnels, which are threads of this
    process, for each frame that was written; 0 if it goes directly.
  """
  port = int(other.claim(name, 'port').rsplit(':', 1)[1])
  write_to = '' if way == _DIRECT else str(one.find(name))
  read_from = str(other.find(name)) if way == _BOTH else ''
  tunnel = psutil.Process()

  def spent() -> float:
    times = tunnel.cpu_times()
    return times.user + times.system

  cpu_s = spent()
  rate, written = bench_replay.measure_blocks(
    seconds, port, write_to, read_from, in_flight
  )
  cpu_s = spent() - cpu_s
  return {
    'frames_per_s': rate,
    'cpu_us': 0.0 if way == _DIRECT else 1e6 * cpu_s / written,
  }


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 3, 5)
  seconds = common.choose(args, 1.0, 5.0, 10.0)
  common.warn_if_busy()
  found: Found = {(way, n): [] for n in IN_FLIGHT for way in WAYS}
  with tempfile.TemporaryDirectory() as top:
    with loopback_hosts.make(pathlib.Path(top), 2) as (one, other):
      for repetition in range(repetitions):
        for (way, in_flight), runs in found.items():
          name = f'{way}/{in_flight}/{repetition}'
          runs.append(measure(one, other, way, name, in_flight, seconds))
          print(f'{name}: {runs[-1]["frames_per_s"]:,.0f} frames/s', flush=True)
  common.publish(_result(found), args)
  return 0


def _result(found: Found) -> common.Result:
  def median(way: str, in_flight: int, key: str = 'frames_per_s') -> float:
    return statistics.median(run[key] for run in found[way, in_flight])

  rows, notes = [], []
  for (way, in_flight), runs in found.items():
    of_direct = median(way, in_flight) / median(_DIRECT, in_flight)
    rates = ' '.join(f'{run["frames_per_s"]:,.0f}' for run in runs)
    rows.append((way, in_flight, rates, f'{of_direct:.2f}'))
    if way != _DIRECT:
      notes.append(
        f'{way}, {in_flight} on their way: costs {1 - of_direct:.0%} of '
        'frames/s where blocks are all that the machine does.'
      )
  most = IN_FLIGHT[-1]
  cpu_us = median(_WRITER, most, 'cpu_us')
  notes.append(
    f'The tunnel of the writer: {cpu_us:.2f} us of CPU for a frame '
    f'(CartPole-v1: {bench_replay.frame_bytes():.0f} bytes), {most} blocks on '
    'their way. All five processes share the cores; between real hosts each '
    'has its own.'
  )
  return common.Result(
    'Reverb through the tunnel between hosts',
    [
      common.table(
        ('way', 'blocks on their way', 'frames/s', 'of direct'), rows
      )
    ],
    notes,
    {
      'frames_per_s': {f'{way}, {n}': median(way, n) for way, n in found},
      'cpu_us': cpu_us,
      'runs': {f'{way}, {n}': runs for (way, n), runs in found.items()},
    },
  )


if __name__ == '__main__':
  sys.exit(main())
