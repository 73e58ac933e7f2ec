"""What the TLS tunnel between hosts costs Reverb: frames/s and CPU.

Blocks end to end as in bench_replay.py (a writer, a queue and a reader in three
processes), with two hosts that are addresses of this machine's loopback, so
that both tunnels share its cores. Directly; with the writer on the other host
(an actor, and a learner that has its queue); and with both beyond a tunnel (a
replay node of its own).
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile
from typing import Any

import psutil

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from tests import loopback_hosts  # noqa: E402
from tests.benchmarks import bench_replay  # noqa: E402
from tests.benchmarks import common  # noqa: E402

_MOST = 0.30  # of frames/s, that the tunnel may cost as a default
_DIRECT = 'direct'
_WRITER = 'writer on another host: two tunnels, TLS'
_BOTH = 'the same, and the reader through the tunnel of its own host'
WAYS = (_DIRECT, _WRITER, _BOTH)


def measure(
  one: loopback_hosts.Host,
  other: loopback_hosts.Host,
  way: str,
  name: str,
  seconds: float,
) -> dict[str, float]:
  """Rates of one way from a writer on `one` to a queue on `other`.

  Returns:
    'frames_per_s', and of each frame that was written 'cpu_us' of the writer's
    tunnel and 'sent_bytes' to the other host; both 0 if it goes directly.
  """
  port = int(other.claim(name, 'port').rsplit(':', 1)[1])
  write_to = '' if way == _DIRECT else str(one.find(name))
  read_from = str(other.find(name)) if way == _BOTH else ''
  tunnel = psutil.Process(one.process.pid)

  def spent() -> float:
    times = tunnel.cpu_times()
    return times.user + times.system

  sent, cpu_s = one.tunnel.traffic()['sent'], spent()
  rate, written = bench_replay.measure_blocks(
    seconds, port, write_to, read_from
  )
  sent, cpu_s = one.tunnel.traffic()['sent'] - sent, spent() - cpu_s
  return {
    'frames_per_s': rate,
    'cpu_us': 1e6 * cpu_s / written if sent else 0.0,
    'sent_bytes': sent / written,
  }


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 3, 5)
  seconds = common.choose(args, 1.0, 5.0, 10.0)
  common.warn_if_busy()
  found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
  with tempfile.TemporaryDirectory() as top:
    with loopback_hosts.make(pathlib.Path(top), 2) as (one, other):
      for repetition in range(repetitions):
        for way, runs in found.items():
          name = f'{way}/{repetition}'
          runs.append(measure(one, other, way, name, seconds))
          print(f'{way}: {runs[-1]["frames_per_s"]:,.0f} frames/s', flush=True)
  common.publish(_result(found), args)
  return 0


def _result(found: dict[str, list[dict[str, Any]]]) -> common.Result:
  medians = {
    way: statistics.median(run['frames_per_s'] for run in runs)
    for way, runs in found.items()
  }
  cpu_us, sent = (
    statistics.median(run[key] for run in found[_WRITER])
    for key in ('cpu_us', 'sent_bytes')
  )
  rows = [
    (
      way,
      ' '.join(f'{run["frames_per_s"]:,.0f}' for run in runs),
      f'{medians[way] / medians[_DIRECT]:.2f}',
    )
    for way, runs in found.items()
  ]
  notes = [
    f'{way}: costs {1 - medians[way] / medians[_DIRECT]:.0%} of frames/s where '
    f'blocks are all that the machine does; the default if under {_MOST:.0%}.'
    for way in (_WRITER, _BOTH)
  ]
  notes.append(
    f'The tunnel of the writer: {cpu_us:.2f} us of CPU for a frame '
    f'(CartPole-v1: {bench_replay.frame_bytes():.0f} bytes, {sent:.0f} as '
    'Reverb sends them). All five processes share the cores; between real '
    'hosts each has its own.'
  )
  return common.Result(
    'Reverb through the tunnel between hosts',
    [common.table(('way', 'frames/s', 'of direct'), rows)],
    notes,
    {'frames_per_s': medians, 'cpu_us': cpu_us, 'runs': found},
  )


if __name__ == '__main__':
  sys.exit(main())
