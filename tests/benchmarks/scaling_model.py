"""What each system would do on 1 to 64 hosts, from what its parts cost here.

  python tests/benchmarks/scaling_model.py            # prints the tables
  python tests/benchmarks/scaling_model.py --save     # writes docs/scaling.md

A part that all hosts share (a learner, a table, a link, the counter) allows so
many environment steps a second and no more; what hosts do for themselves grows
with them. A system makes the least of these, and that part is where it stops.
Costs are those of docs/results/performance.json: CartPole-v1, 64 x 64. Not
measured, but chosen: the link, and the cores of a host.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
import statistics
import sys
from typing import Any

# Run as a file, Python would look for modules beside it first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from tests.benchmarks import report

HOSTS = (1, 2, 4, 8, 16, 32, 64)
LINK = 125e6  # bytes/s of a host, each way: 1 Gbit/s
CORES = 2.0  # of a host
_NODES_OF_A_HOST = (
  3  # that report once a second: two actors or workers, a tunnel
)
_FRESH_S = 0.01  # between two questions of a host's one actor for parameters
# Bytes of CartPole's packed transition, of a frame in a [20, 64] block, and of
# theta for 64 x 64: with Q values, and with a policy and a value.
TRANSITION, FRAME = 56.0, 40.0
THETA_Q, THETA_AC = 18_440.0, 18_700.0
_RATIO = 32  # samples per insert of Ape-X
# As bench_apex.py and bench_impala.py have them: environment steps after which
# an actor asks for parameters, and updates between two of which others hear.
_PERIOD_Q, _PERIOD_AC = 64, 20 * 64
_CALL_Q, _CALL_AC = 32, 8
_BATCH_A2C = 80  # steps of an update of gossip and A3C
_EPISODE = 500  # steps of an episode that CartPole's time limit ends
_POPULATION = 64  # policies of a generation
# That measure the parts.
_SCRIPTS = (
  'bench_roofline',
  'bench_replay',
  'bench_control_plane',
  'bench_swarm',
  'bench_papers',
  'bench_tunnel',
)


@dataclasses.dataclass(frozen=True)
class Parts:
  """What was measured: us of CPU for each environment step, or calls/s.

  Attributes:
    apex: 'act', 'write', 'sample', 'update'.
    impala: 'act', 'queue', 'update'.
    samples_per_s: that one table gives to one learner.
    reports_per_s: that the counter answers.
    fetches_per_s: that a server of parameters or of a shard answers.
    own: steps/s of a core, for systems whose hosts learn each for itself.
    forward: us of CPU of a byte at each of the two tunnels that it passes; 0
      where that was not measured.
    machines: benchmarks by the machine on which they were made.
  """

  apex: Mapping[str, float]
  impala: Mapping[str, float]
  samples_per_s: float
  reports_per_s: float
  fetches_per_s: float
  own: Mapping[str, float]
  forward: float = 0.0
  machines: Mapping[str, Sequence[str]] = dataclasses.field(
    default_factory=dict
  )


def parts(results: Mapping[str, Any]) -> Parts:
  """Of docs/results/performance.json.

  Raises:
    KeyError: a benchmark is not in there; named.
  """

  def median(script: str, system: str, key: str) -> float:
    runs = results[script]['numbers']['runs'][system]
    return statistics.median(run[key] for run in runs)

  roof = results['bench_roofline']['numbers']
  acting = 'acting: policy, environment, episodes'
  control = results['bench_control_plane']['numbers']
  steps = 'env_steps_per_s'
  swarm = results['bench_swarm']['numbers']['population_updates_per_s']
  tunnel = results.get('bench_tunnel', {}).get('numbers', {})
  papers = 'bench_papers'
  machines: dict[str, list[str]] = {}
  for script in _SCRIPTS:
    if script in results:
      machines.setdefault(results[script]['machine'], []).append(script)
  return Parts(
    apex={
      'act': roof['apex'][acting],
      'write': roof['apex']['writing one item, its priority computed'],
      'sample': roof['apex']['32 samples, priorities written back'],
      'update': roof['apex']['32/256 of an update'],
    },
    impala={
      'act': roof['impala'][acting],
      'queue': roof['impala']['the queue: blocks written and sampled'],
      'update': roof['impala']['1/160 of an update'],
    },
    samples_per_s=statistics.median(
      found['per_s'] for found in results['bench_replay']['numbers']['samples']
    ),
    reports_per_s=control['report, 1000 nodes, 64 clients']['calls_per_s'],
    fetches_per_s=control['fetch, 1000 nodes, 64 clients']['calls_per_s'],
    # Two workers on the two cores of the machine, or all of it.
    own={
      'swarm': statistics.median(swarm) / 2,
      'gossip': median(papers, 'Murmuration GALA, 2 x 16', steps) / 2,
      'parameter server (A3C)': median(papers, 'Murmuration A3C, 4 x 4', steps)
      / 2,
      'evolution': median(papers, 'Murmuration ES', steps) / 2,
    },
    forward=tunnel.get('cpu_us', 0.0) / FRAME,
    machines=machines,
  )


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Of one system on so many hosts.

  Attributes:
    steps_per_s: of the environment, of all hosts.
    binds: the part that allows no more.
    busiest_bytes_per_s: of the link of the busiest host, the fuller way.
    limits: part -> steps/s that it allows.
    traffic: steps/s to what those bytes/s would be with so many.
  """

  steps_per_s: float
  binds: str
  busiest_bytes_per_s: float
  limits: Mapping[str, float]
  traffic: Callable[[float], float]


def _least(
  limits: dict[str, float], traffic: Callable[[float], float]
) -> Prediction:
  binds = min(limits, key=lambda part: limits[part])
  steps = limits[binds]
  return Prediction(steps, binds, traffic(steps), limits, traffic)


def _theta_out(
  hosts: int, theta: float, new_per_s: float, asked_per_s: float
) -> float:
  """Bytes/s of parameters that leave a learner: once to each other host.

  Args:
    hosts: how many, the learner's with them.
    theta: bytes.
    new_per_s: how often there are new ones.
    asked_per_s: how often the actors of a host ask, one after the other.
  """
  return (hosts - 1) * theta * min(new_per_s, asked_per_s, 1 / _FRESH_S)


def _counter(p: Parts, hosts: int, steps: float) -> dict[str, float]:
  """No limit while the counter answers all; then its share of them."""
  calls = hosts * _NODES_OF_A_HOST
  return (
    {
      f'counter ({calls:,} reports/s)': steps
      * min(1.0, p.reports_per_s / calls)
    }
    if calls > p.reports_per_s
    else {}
  )


def _actors(
  hosts: int,
  cores: float,
  act: float,
  learn: float,
  forward: float,
  away: float = 0.0,
) -> float:
  """Steps/s that the CPU of all hosts allows, with the learner on the first.

  Args:
    hosts: how many.
    cores: of each.
    act: us of a step where it is acted.
    learn: us of a step at the learner's host.
    forward: us more at both ends for a step from another host.
    away: us of a step for what else is on the other hosts.
  """
  all_us = 1e6 * cores
  others = (hosts - 1) * all_us / (act + away + forward)
  left = all_us - others * (learn + forward)
  if left >= 0:  # the learner's host has time to act too
    return others + left / (act + learn)
  return all_us / (learn + forward)


def apex(p: Parts, hosts: int, cores: float = CORES, shards: int = 1):
  """Ape-X at 32 samples per insert, the learner with its tables."""
  c = p.apex
  near = c['sample'] + c['update'] + c['write']
  away = 0.0
  if shards > 1 and hosts > 1:
    # Tables are on the other hosts. Half of a sample is taken to be its
    # client's, which stays: that was not measured.
    near = c['update'] + c['sample'] / 2
    away = c['write'] + c['sample'] / 2
  limits = {
    "CPU of all hosts, or of the learner's": _actors(
      hosts, cores, c['act'], near, p.forward * TRANSITION, away
    ),
    'tables (samples/s)': shards * p.samples_per_s / _RATIO,
    'learner (one thread of updates)': 1e6 / c['update'],
  }

  # Bytes to the learner's host with a step.
  into = TRANSITION * (hosts - 1) / hosts
  if away:
    into += _RATIO * TRANSITION * (shards - 1) / shards
  if hosts > 1:  # where parameters fill it the other way, they are older
    limits["link of the learner's host"] = LINK / into

  def traffic(steps: float) -> float:
    new, asked = steps * _RATIO / 256 / _CALL_Q, steps / hosts / _PERIOD_Q
    return max(steps * into, _theta_out(hosts, THETA_Q, new, asked))

  limits |= _counter(p, hosts, min(limits.values()))
  return _least(limits, traffic)


def impala(p: Parts, hosts: int, cores: float = CORES, learners: int = 1):
  """IMPALA with its queue in the learner, G learners with a part of it each."""
  c = p.impala
  groups = max(1, min(learners, hosts))
  mine = hosts / groups  # hosts of a learner
  limits = {
    "CPU of all hosts, or of the learners'": groups
    * _actors(
      max(1, int(mine)),
      cores,
      c['act'],
      c['queue'] + c['update'],
      p.forward * FRAME,
    ),
    'learner (one thread of updates)': groups * 1e6 / c['update'],
  }

  def traffic(steps: float) -> float:
    updates = steps / 160 / groups
    into = steps / groups * (mine - 1) / mine * FRAME
    # Learners average their gradients in a ring.
    ring = 2 * THETA_AC * updates * (groups - 1) / groups
    new, asked = updates / _CALL_AC, steps / hosts / _PERIOD_AC
    return max(into, _theta_out(int(mine), THETA_AC, new, asked)) + ring

  if mine > 1:  # of frames in; where parameters fill it, they are older
    limits["link of the learner's host"] = (
      groups * LINK * mine / (mine - 1) / FRAME
    )
  limits |= _counter(p, hosts, min(limits.values()))
  return _least(limits, traffic)


def swarm(p: Parts, hosts: int, cores: float = CORES):
  """Explorers that learn for themselves; they ask for theta_star once a s."""
  own = hosts * cores * p.own['swarm']
  nodes = hosts * cores
  limits = {
    'CPU of all hosts': own,
    'server of theta_star': own * p.fetches_per_s / nodes,
    **_counter(p, hosts, own),
  }
  return _least(limits, lambda steps: (nodes - cores) * THETA_Q)


def gossip(p: Parts, hosts: int, cores: float = CORES):
  """A message of theta to one peer with each update."""
  own = hosts * cores * p.own['gossip']
  each = cores * p.own['gossip'] / _BATCH_A2C * THETA_AC  # bytes/s of a host
  limits = {'CPU of all hosts': own}
  if hosts > 1:
    limits['link of each host'] = own * LINK / each
  limits |= _counter(p, hosts, own)
  return _least(limits, lambda steps: each * steps / own if hosts > 1 else 0.0)


def parameter_server(p: Parts, hosts: int, cores: float = CORES):
  """A3C, one shard: of 80 steps a gradient goes up, and theta comes back."""
  own = hosts * cores * p.own['parameter server (A3C)']
  away = (hosts - 1) / hosts
  limits = {
    'CPU of all hosts': own,
    'shard (calls/s)': p.fetches_per_s * _BATCH_A2C,
  }
  if hosts > 1:
    limits["link of the shard's host"] = LINK / THETA_AC * _BATCH_A2C / away
  limits |= _counter(p, hosts, own)
  return _least(limits, lambda steps: steps / _BATCH_A2C * THETA_AC * away)


def evolution(p: Parts, hosts: int, cores: float = CORES):
  """64 policies a generation: with as many cores, one policy is the rest."""
  own = hosts * cores * p.own['evolution']
  limits = {
    'CPU of all hosts': own,
    'one policy to a core': _POPULATION * p.own['evolution'],
    **_counter(p, hosts, own),
  }
  generation = _POPULATION * _EPISODE
  if hosts > 1:
    limits["link of the leader's host"] = (
      LINK / ((hosts - 1) * THETA_AC) * generation
    )
  return _least(
    limits, lambda steps: (hosts - 1) * THETA_AC * steps / generation
  )


# Name, prediction, what to change when it stops.
SYSTEMS: dict[str, tuple[Callable[..., Prediction], str]] = {
  'Ape-X, 32 samples per insert': (
    apex,
    'more transitions to an item (8: half the cost of a sample), then '
    '`actors.shards`, then a lower ratio or a host of more cores',
  ),
  'Ape-X, 4 shards': (
    lambda p, hosts: apex(p, hosts, shards=4),
    'several learners, or a host of more cores',
  ),
  'IMPALA': (impala, 'several learners (G = 4 below), each with its actors'),
  'IMPALA, 4 learners': (
    lambda p, hosts: impala(p, hosts, learners=4),
    'more learners; longer unrolls and larger batches',
  ),
  'swarm': (swarm, 'nothing up to here; then explorers per node'),
  'gossip': (gossip, 'nothing up to here; its links do not fill with hosts'),
  'parameter server (A3C)': (
    parameter_server,
    'more steps to a gradient first: shards divide bytes, and not calls',
  ),
  'evolution': (evolution, 'a larger population, longer episodes'),
}


def tables(p: Parts) -> str:
  """Markdown: steps/s, MB/s of the busiest link, and what binds."""
  hosts = ' | '.join(str(n) for n in HOSTS)
  rule = '| --- |' + ' ---: |' * len(HOSTS)
  found = {
    name: [predict(p, n) for n in HOSTS]
    for name, (predict, _) in SYSTEMS.items()
  }
  rows = [f'| steps/s, thousands; hosts: | {hosts} |', rule]
  rows += [
    f'| {name} | '
    + ' | '.join(f'{one.steps_per_s / 1e3:,.1f}' for one in row)
    + ' |'
    for name, row in found.items()
  ]
  rows += ['', f'| MB/s of the busiest link; hosts: | {hosts} |', rule]
  rows += [
    f'| {name} | '
    + ' | '.join(f'{one.busiest_bytes_per_s / 1e6:,.2f}' for one in row)
    + ' |'
    for name, row in found.items()
  ]
  rows += ['', '| system | stops at | because of | what to change |']
  rows.append('| --- | --- | --- | --- |')
  for name, row in found.items():
    stops, why = stop(row)
    rows.append(f'| {name} | {stops} | {why} | {SYSTEMS[name][1]} |')
  if len(p.machines) > 1:
    said = '; '.join(f'{", ".join(v)}: {k}' for k, v in p.machines.items())
    rows += ['', f'**The parts are of more than one machine.** {said}.']
  return '\n'.join(rows)


def save(results: Mapping[str, Any]) -> None:
  """Writes the tables into docs/scaling.md.

  Args:
    results: of docs/results/performance.json.

  Raises:
    KeyError: a benchmark is not in there; named.
  """
  text = tables(parts(results))
  report.replace(report.SCALING, report.BEGIN_MODEL, report.END_MODEL, text)


def stop(row: list[Prediction]) -> tuple[str, str]:
  """Where twice the hosts make less than 1.2 times the steps; and why."""
  for before, hosts, after in zip(row, HOSTS, row[1:]):
    if after.steps_per_s < 1.2 * before.steps_per_s:
      return f'{hosts} host{"s" * (hosts > 1)}', after.binds
  return f'not up to {HOSTS[-1]}', f'{row[-1].binds} binds'


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--save', action='store_true', help='write docs/scaling.md'
  )
  args = parser.parse_args()
  results = report.load()
  print(tables(parts(results)))
  if args.save:
    save(results)
  return 0


if __name__ == '__main__':
  sys.exit(main())
