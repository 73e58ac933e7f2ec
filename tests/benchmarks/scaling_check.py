"""Steps/s on one, two and three hosts, as far as one machine allows.

  python tests/benchmarks/scaling_check.py --save     # as root

Hosts are network namespaces (tests/faults/namespaces.py), each with a Ray, and
a quota of the processor for all of its processes (cgroup cpu, either version).
One more host, without a quota, has the launcher and no node. The first has the
learner and an actor, each other one an actor; evaluator and counter lie where
Ray puts them.

Bytes are those of frames on the links of the hosts with nodes, in the same
window: of the busiest host, the fuller way.

  python tests/benchmarks/scaling_check.py --hosts=2 --plain_replay

is the same without the tunnel (launch/engines/cluster/tunnel.py) before
Reverb, which shows what that costs a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import time
from typing import Any

# Run as a file, Python would look for modules beside it first.
from murmuration.run_records import metrics
from tests.benchmarks import bench_apex
from tests.benchmarks import bench_impala
from tests.benchmarks import common
from tests.benchmarks import report
from tests.faults import namespaces

_PORT = 6379
_READY_S = 400.0
_SETTLE_S = 5.0
_STOP_S = 60.0
_PERIOD_US = 100_000
_V1 = pathlib.Path('/sys/fs/cgroup/cpu')
_V2 = pathlib.Path('/sys/fs/cgroup')
_SYSTEMS = {
  'IMPALA': bench_impala.sized(0, 64),
  'Ape-X': (*bench_apex.RATIO, common.NO_TARGET),
}


@contextlib.contextmanager
def _group(name: str) -> Iterator[pathlib.Path]:
  """A cgroup, without a quota yet.

  Raises:
    RuntimeError: this machine lets nobody make one.
  """
  try:
    if (_V1 / 'cpu.cfs_quota_us').exists():
      group = _V1 / name
    else:
      (_V2 / 'cgroup.subtree_control').write_text('+cpu')
      group = _V2 / name
    group.mkdir()
  except OSError as e:
    raise RuntimeError(
      f'This machine gives no quota of its processor (cgroup cpu: {e}): run '
      'as root, where /sys/fs/cgroup can be written.'
    ) from e
  try:
    yield group
  finally:
    for _ in range(50):  # its last processes are on their way out
      with contextlib.suppress(OSError):
        group.rmdir()
        break
      time.sleep(0.1)


def _limit(group: pathlib.Path, cores: float) -> None:
  """Its processes have so much of the processor together from now on."""
  quota = str(int(cores * _PERIOD_US))
  if (group / 'cpu.max').exists():
    (group / 'cpu.max').write_text(f'{quota} {_PERIOD_US}')
  else:
    (group / 'cpu.cfs_period_us').write_text(str(_PERIOD_US))
    (group / 'cpu.cfs_quota_us').write_text(quota)


class _Host(namespaces.Host):
  """One whose processes are in a cgroup."""

  def __init__(self, number: int, group: pathlib.Path | None):
    self._group = group
    super().__init__(number)

  def command(self, *words: str) -> list[str]:
    command = super().command(*words)
    if self._group is None:
      return command
    enter = f'echo $$ > {self._group}/cgroup.procs && exec "$@"'
    return ['sh', '-c', enter, 'sh', *command]


def _start_ray(
  host: namespaces.Host, head: namespaces.Host | None, cpus: int, what: str
) -> None:
  where = [f'--address={head.address}:{_PORT}'] if head else ['--head']
  if head is None:
    where += [f'--port={_PORT}', f'--temp-dir={host.files}/ray']
    where.append('--include-dashboard=false')
  host.run(
    str(pathlib.Path(sys.executable).with_name('ray')),
    'start',
    *where,
    f'--node-ip-address={host.address}',
    f'--num-cpus={cpus}',
    f'--resources={what}',
    f'--object-store-memory={80 << 20}',
    '--disable-usage-stats',
    environment={'RAY_memory_monitor_refresh_ms': '0'},
  )


def measure(
  system: str,
  number: int,
  cores: float,
  window_s: float,
  more: Sequence[str] = (),
) -> tuple[float, float]:
  """Environment steps/s of a system on so many hosts; bytes/s of a link.

  Raises:
    RuntimeError: the run ended, or does not learn in time.
  """
  flags = _SYSTEMS[system]
  with contextlib.ExitStack() as stack:
    top = pathlib.Path(
      stack.enter_context(
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
      )
    )
    head = _Host(1, None)
    stack.callback(head.close)
    _start_ray(head, None, 0, '{}')
    hosts: list[namespaces.Host] = []
    for index in range(number):
      name = f'murmuration-{os.getpid()}-{index}'
      group = stack.enter_context(_group(name))
      host = _Host(index + 2, group)
      stack.callback(host.close)
      hosts.append(host)
      learns = '"learns": 1, ' if index == 0 else ''
      _start_ray(host, head, 8, f'{{{learns}"acts": 1}}')
      _limit(group, cores)  # Ray itself gives up if it starts too slowly
    run, output = top / 'run', top / 'output.txt'
    launcher = head.start(
      sys.executable,
      str(common.ROOT / 'launch' / 'run.py'),
      *flags,
      f'--config.actors.num_actors={number}',
      '--lp_launch_type=ray',
      f'--ray_address={head.address}:{_PORT}',
      '--cluster=learner:learns=1',
      '--cluster=actor:acts=1',
      *more,
      f'--run_dir={run}',
      output=output,
    )
    try:
      deadline = time.monotonic() + _READY_S
      while not metrics.read_jsonl(run / 'metrics' / 'first_update.jsonl'):
        if launcher.poll() is not None or time.monotonic() > deadline:
          said = output.read_text(errors='replace')[-2000:]
          raise RuntimeError(f'{system} on {number} does not learn:\n{said}')
        time.sleep(0.5)
      return _rate(run, hosts, window_s)
    finally:
      if launcher.poll() is None:
        launcher.send_signal(signal.SIGINT)
        with contextlib.suppress(Exception):
          launcher.wait(_STOP_S)


def _rate(
  run: pathlib.Path, hosts: Sequence[namespaces.Host], window_s: float
) -> tuple[float, float]:
  """Steps/s of all actors, by the clock of their reports, and bytes/s."""
  path, actors = run / 'metrics' / 'node_actor.jsonl', len(hosts)
  time.sleep(_SETTLE_S)
  skip = len(metrics.read_jsonl(path))
  began, before = time.monotonic(), [host.traffic() for host in hosts]
  time.sleep(window_s + 1.0)
  after = [host.traffic() for host in hosts]
  busiest = busiest_bytes(before, after) / (time.monotonic() - began)
  by_node: dict[str, list[dict[str, Any]]] = {}
  for row in metrics.read_jsonl(path)[skip:]:
    by_node.setdefault(row['node'], []).append(row)
  if len(by_node) < actors or any(len(rows) < 2 for rows in by_node.values()):
    raise RuntimeError(
      f'{len(by_node)} of {actors} actors reported in {window_s:g} s: the '
      'machine is too busy for this window.'
    )
  steps_per_s = sum(
    (rows[-1]['own_actor_steps'] - rows[0]['own_actor_steps'])
    / (rows[-1]['elapsed_s'] - rows[0]['elapsed_s'])
    for rows in by_node.values()
  )
  return steps_per_s, busiest


def busiest_bytes(
  before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]
) -> int:
  """Of the link of the busiest host, the fuller way.

  Args:
    before: bytes of each host, sent and received.
    after: likewise, later.
  """
  return max(
    later - earlier
    for host in zip(before, after, strict=True)
    for earlier, later in zip(*host, strict=True)
  )


def _table(rows: list[dict[str, Any]]) -> str:
  """What was measured, and what hosts made of one."""
  one = {row['system']: row for row in rows if row['hosts'] == 1}
  cells = []
  for row in rows:
    first = one.get(row['system'])
    times = '-'
    if first is not None:
      times = f'{row["measured"] / first["measured"]:.2f}'
    cells.append(
      (
        row['system'],
        row['hosts'],
        f'{row["measured"]:,.0f}',
        times,
        f'{row["measured_bytes"] / 1e6:.2f}',
      )
    )
  headers = 'system', 'hosts', 'steps/s', 'times one host', 'MB/s of a link'
  return common.table(headers, cells)


def main() -> int:
  args = common.arguments(__doc__, _define)
  hosts = [int(n) for n in args.hosts.split(',')]
  systems = args.systems.split(',')
  for system in systems:
    if system not in _SYSTEMS:
      print(f'error: no system {system!r}: {", ".join(_SYSTEMS)}')
      return 2
  namespaces.enter()
  signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
  window_s = common.choose(args, 10.0, 20.0, 30.0)
  common.warn_if_busy()
  rows: list[dict[str, Any]] = []
  for system in systems:
    for number in hosts:
      steps_per_s, busiest = measure(
        system,
        number,
        args.cores,
        window_s,
        ('--ray_plain_replay',) if args.plain_replay else (),
      )
      rows.append(
        {
          'system': system,
          'hosts': number,
          'measured': steps_per_s,
          'measured_bytes': busiest,
        }
      )
      print(rows[-1], flush=True)
  text = '\n\n'.join(
    [
      f'{report.made(common.origin(args))}; hosts of {args.cores:g} cores; '
      f'environment steps/s, a window of {window_s:g} s.',
      _table(rows),
    ]
  )
  print(text)
  if args.save:
    report.save_check({'cores': args.cores, 'rows': rows, 'text': text})
  return 0


def _define(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--cores', type=float, default=0.5, help='of a host')
  parser.add_argument('--hosts', default='1,2,3')
  parser.add_argument('--systems', default=','.join(_SYSTEMS))
  parser.add_argument(
    '--plain_replay', action='store_true', help='Reverb without the tunnel'
  )


if __name__ == '__main__':
  sys.exit(main())
