"""A cluster of hosts on this machine, of which one is lost in mid-run.

    make cluster-demo                                   # Ape-X, IMPALA, ...
    python tests/faults/cluster_demo.py --only=impala,swarm
    python tests/faults/cluster_demo.py --weather=50,1  # links: ms late, % lost

Ray runs on a head and on two hosts with addresses of their own
(namespaces.py). A program is started on the head; once it learns, a host
loses its link and all its processes; later a new host joins, for which one of
the lost nodes has to wait. At the end a table says what was lost, for how long
work stood still, and how each run ended. The exit code is 0 if all ended with
0, started each lost node again, used the new host, and after the loss reached
the greedy return that solves their task. The head has the launcher alone: it is
the one host that Ray cannot lose.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

# When run as a file, Python searches tests/faults/ for modules first.
from tests.faults import cluster_records
from tests.faults import launched
from tests.faults import namespaces
from tests.faults import slow_link

_PORT = 6379
_LEARNS_S = 240.0  # from the start of a run to its first update, at most
# How long the rest goes on before a new host joins: long enough to see that
# lost nodes come back without it.
_ALONE_S = 20.0
_END_S = 900.0
_LIVED_S = 15.0  # after the first update, until the host is lost
_BAR = 475.0  # the greedy return that solves CartPole-v1
# How soon Ray takes a silent host for lost: its own numbers make about 30 s.
_HEALTH = {
  'RAY_health_check_initial_delay_ms': '2000',
  'RAY_health_check_period_ms': '1000',
  'RAY_health_check_timeout_ms': '2000',
  'RAY_health_check_failure_threshold': '3',
  'RAY_memory_monitor_refresh_ms': '0',
}
SYSTEMS = {
  'apex': (
    'apex_dqn:cartpole',
    '--config.run.replay=node',
    '--config.actors.shards=2',
    '--config.actors.num_actors=4',
  ),
  'impala': (
    'impala:cartpole',
    '--config.run.steps_per_agent=1_500_000',
    '--config.actors.num_actors=4',
  ),
  'swarm': (
    'pso_dqn:cartpole',
    '--config.swarm.num_explorers=8',
    '--config.swarm.explorers_per_node=2',
  ),
  'gossip': (
    'gala_a2c:cartpole',
    '--config.run.steps_per_agent=40_000',
  ),
}

# Of each system the nodes that act, of which there are four. A host has room
# for three: after the loss one of them waits for the new host.
_ACTS = {
  'apex': 'actor',
  'impala': 'actor',
  'swarm': 'explorer',
  'gossip': 'worker',
}
_ROOM = 3
_LOST = {
  'apex': 'learner/0',
  'impala': 'learner/0',
  'swarm': 'explorer/0',
  'gossip': 'worker/0',
}


class Cluster:
  """Ray on a head and some hosts."""

  def __init__(self, weather: slow_link.Weather | None):
    self._weather = weather
    self.hosts: dict[str, namespaces.Host] = {}
    self.head = self.join(cpus=0)

  def join(self, cpus: int) -> namespaces.Host:
    number = len(self.hosts) + 1
    host = namespaces.Host(number, self._weather)
    self.hosts[host.name] = host
    first = number == 1
    ray = str(pathlib.Path(sys.executable).with_name('ray'))
    where = ['--head', f'--port={_PORT}', f'--temp-dir={host.files}/ray']
    if not first:
      where = [f'--address={self.head.address}:{_PORT}']
    host.run(
      ray,
      'start',
      *where,
      f'--node-ip-address={host.address}',
      f'--num-cpus={cpus}',
      f'--resources={{"acts": {_ROOM}}}',
      f'--object-store-memory={80 << 20}',
      '--disable-usage-stats',
      *(['--include-dashboard=false'] if first else []),
      environment=_HEALTH,
    )
    return host

  def close(self) -> None:
    for host in self.hosts.values():
      host.close()


def run(
  system: str,
  directory: pathlib.Path,
  lose: str,
  weather: slow_link.Weather | None,
  extra: Sequence[str],
) -> cluster_records.Result:
  """Runs one system, and loses the host of the node `lose`."""
  directory.mkdir(parents=True)
  load = os.getloadavg()[0]
  where = directory / 'run'
  output = directory / 'output.txt'
  here: dict[str, list[cluster_records.Start]] = {}
  at, code, problem, lost, joined = time.time(), None, '', '', ''
  cluster = Cluster(weather)
  reports = cluster_records.Reports(where)
  try:
    cluster.join(cpus=12)
    cluster.join(cpus=12)
    began = time.monotonic()
    launcher = cluster.head.start(
      sys.executable,
      str(launched.COMMAND),
      *SYSTEMS[system],
      '--config.run.target_return=None',  # the host is lost before it ends
      '--lp_launch_type=ray',
      f'--ray_address={cluster.head.address}:{_PORT}',
      f'--cluster={_ACTS[system]}:acts=1',
      f'--run_dir={where}',
      *extra,
      output=output,
    )
    with reports:
      _wait(launcher, lambda: _learns(where), _LEARNS_S, 'update')
      time.sleep(_LIVED_S)
      print(
        f'{system}: learns after {time.monotonic() - began:.0f} s', flush=True
      )
      here = cluster_records.starts(where)
      if lose not in here:  # it has not started yet, or has no log of its own
        raise RuntimeError(f'no node {lose!r}: there are {", ".join(here)}')
      lost = here[lose][-1].host
      _goes_on(launcher)
      at = time.time()
      cluster.hosts[lost].pull_the_plug()
      print(f'{system}: {lost} lost', flush=True)
      time.sleep(_ALONE_S)
      _goes_on(launcher)
      joined = cluster.join(cpus=12).name
      print(f'{system}: {joined} joined', flush=True)
      code = launcher.wait(_END_S)
  except (subprocess.TimeoutExpired, RuntimeError) as e:
    problem = str(e)
  finally:
    cluster.close()
  found = cluster_records.result(
    system,
    where,
    here,
    lost,
    joined,
    at,
    reports,
    exit_code=code,
    bar=_BAR,
    problem=problem,
    load=load,
  )
  print(cluster_records.table([found]), flush=True)
  if found.faults:
    print(
      f'{system}: {"; ".join(found.faults)}\n{launched.last_words(output)}',
      flush=True,
    )
  return found


def nodes(system: str, extra: Sequence[str]) -> list[str]:
  """Names of the nodes that a run would have.

  Args:
    system: one of SYSTEMS.
    extra: further words of run.py.

  Raises:
    ValueError: the words are refused.
  """
  # Here, as they import TensorFlow, and are for --lose alone.
  from murmuration.launch import cell  # pylint: disable=g-import-not-at-top
  from murmuration.launch import command_line  # pylint: disable=g-import-not-at-top
  from murmuration.launch import graph  # pylint: disable=g-import-not-at-top
  from murmuration.launch import registry  # pylint: disable=g-import-not-at-top

  words, changed = command_line.overrides([*SYSTEMS[system], *extra])
  flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  flags.add_argument('agent')
  flags.add_argument('--topology')
  found, _ = flags.parse_known_args(words)
  agent, preset = registry.split(found.agent)
  made = cell.resolve(agent, preset, found.topology, changed)
  return graph.nodes(made.build())


def _weather(text: str) -> slow_link.Weather:
  """For argparse, which would swallow the sentence of a ValueError."""
  try:
    return slow_link.Weather.parse(text)
  except ValueError as e:
    raise argparse.ArgumentTypeError(str(e)) from e


def _learns(run: pathlib.Path) -> bool:
  return (run / 'metrics' / 'first_update.jsonl').exists()


def _wait(launcher, condition, timeout_s: float, what: str) -> None:
  deadline = time.monotonic() + timeout_s
  while not condition():
    _goes_on(launcher)
    if time.monotonic() > deadline:
      raise RuntimeError(f'no {what} within {timeout_s:.0f} s')
    time.sleep(0.2)


def _goes_on(launcher) -> None:
  """Raises RuntimeError if a run has ended before its time."""
  if launcher.poll() is not None:
    raise RuntimeError(f'the run ended with code {launcher.returncode} already')


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--only', default=','.join(SYSTEMS), help='default: %(default)s'
  )
  parser.add_argument(
    '--lose', default='', help='the node whose host is lost; default: a learner'
  )
  parser.add_argument('--directory', default='', help='default: a new one')
  parser.add_argument(
    '--weather',
    type=_weather,
    metavar='MS,PERCENT',
    help='what the link of each host does to all that it sends',
  )
  parser.add_argument(
    '--save', action='store_true', help='keep the table, in docs/clusters.md'
  )
  args, extra = parser.parse_known_args()
  systems = launched.chosen(parser, args.only, SYSTEMS)
  if args.save and (args.lose or args.weather or extra):
    parser.error(
      '--save keeps what `make cluster-demo` shows: without --lose, --weather '
      'and words for run.py.'
    )
  for system in systems:
    try:
      there = nodes(system, extra) if args.lose else [args.lose]
    except ValueError as e:
      parser.error(str(e))
    if args.lose not in there:
      parser.error(
        f'--lose={args.lose}: {system} has no such node, but {", ".join(there)}'
      )
  namespaces.enter()
  signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
  top = pathlib.Path(args.directory or tempfile.mkdtemp(prefix='cluster-'))
  print(f'runs are in {top}', flush=True)
  found = [
    run(system, top / system, args.lose or _LOST[system], args.weather, extra)
    for system in systems
  ]
  print(f'\n{cluster_records.table(found)}')
  if args.save:
    seen = [one for one in found if not one.problem]
    cluster_records.save(seen, list(SYSTEMS))
  return int(any(one.faults for one in found))


if __name__ == '__main__':
  sys.exit(main())
