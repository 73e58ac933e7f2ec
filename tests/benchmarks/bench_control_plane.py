"""Counter, parameters and directory of a large program, without its work.

Processes that only talk: so many nodes are known to the counter, and so many
clients at a time report their counts to it and fetch 80 kB of parameters, one
call after the other. What is measured is the service: calls/s of all clients,
the 50th and 99th percentile of a call, and the memory of its process. Clients
share the machine with it, as actors would. Beside that: names in a directory
of one machine, which is files, and in the actor of a Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import itertools
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
import psutil

from murmuration.agents import parameters
from murmuration.launch import rpc
from murmuration.launch.engines.cluster import actors
from murmuration.launch.rpc import directory
from murmuration.launch.services import counter as counter_lib
from murmuration.launch.services import variables
from tests.benchmarks import common

NODES = (16, 64, 256, 1000)  # known to the counter
CLIENTS = (1, 16, 64, 256)
_PROCESSES = 8  # at most, that the clients are threads of
_THETA = 20_000  # floats
_NEW_EVERY_S = 0.05  # parameters
_LAYOUT = parameters.Layout([('w', (_THETA,))])
Call = Callable[[], Any]


class Service:
  """A counter and a learner's parameters, as two nodes would serve them."""

  serves = ('begin', 'report', 'get_parameters', 'snapshot_s')

  def __init__(self, run_dir: str, nodes: int):
    counter = self._counter = counter_lib.Counter(run_dir)
    self._published = variables.Published(_LAYOUT)
    self.begin, self.report = counter.begin, counter.report
    self.get_parameters = self._published.get
    for node in range(nodes):
      counter.report(f'actor/{node}', {'actor_steps': 1}, _METRICS)

  def publish(self, stop: Any) -> None:
    version = 0
    while not stop.wait(_NEW_EVERY_S):
      version += 1
      self._published.publish(version, np.zeros(_THETA, np.float32))

  def snapshot_s(self) -> float:
    """Seconds that one look of the live view takes."""
    began = time.perf_counter()
    self._counter.snapshot()
    return time.perf_counter() - began


# As an actor's.
_METRICS = {f'number_{i}': float(i) for i in range(8)}


def _serve(address: str, run_dir: str, nodes: int, ready: Any, stop: Any):
  service = Service(run_dir, nodes)
  with rpc.serve(service, address):
    ready.set()
    service.publish(stop)


def _reports(client: Any, index: int) -> Call:
  name, life, done = f'actor/{index}', ('bench', 1), itertools.count(50, 50)
  client.begin(name, life)

  def report() -> None:
    client.report(name, {'actor_steps': next(done)}, _METRICS, life)

  return report


def _fetches(client: Any, index: int) -> Call:
  del index
  return lambda: client.get_parameters(-1)  # newer ones, each time


_KINDS = {'report': _reports, 'fetch': _fetches}


def _talk(
  kind: str, address: str, clients: Sequence[int], seconds: float, out: Any
) -> None:
  """Clients of one process, a thread each; puts their calls' seconds."""
  took: list[list[float]] = [[] for _ in clients]
  began = threading.Barrier(len(clients))

  def work(place: int, index: int) -> None:
    client = rpc.Client(address, timeout_s=60.0)
    call = _KINDS[kind](client, index)
    call()
    began.wait()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
      call()
      took[place].append(time.perf_counter() - start)

  threads = [
    threading.Thread(target=work, args=(place, index))
    for place, index in enumerate(clients)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  out.put(np.concatenate([np.asarray(x) for x in took]))


@contextlib.contextmanager
def _service(scratch: pathlib.Path, nodes: int) -> Iterator[tuple[str, Any]]:
  """A service in a process of its own; yields its address and the process."""
  context = multiprocessing.get_context('fork')
  ready, stop = context.Event(), context.Event()
  run_dir = scratch / f'run{nodes}'
  (run_dir / 'metrics').mkdir(parents=True)
  address = f'unix:{scratch}/{nodes}'
  process = context.Process(
    target=_serve, args=(address, str(run_dir), nodes, ready, stop)
  )
  process.start()
  if not ready.wait(120):
    raise TimeoutError(f'the service of {nodes} nodes did not start in 120 s')
  try:
    yield address, psutil.Process(process.pid)
  finally:
    stop.set()
    process.join(20)
    process.kill()


def measure(
  scratch: pathlib.Path, nodes: int, clients: int, kind: str, seconds: float
) -> dict[str, float]:
  """Rate, percentiles and memory of one case."""
  context = multiprocessing.get_context('fork')
  with _service(scratch, nodes) as (address, process):
    out = context.SimpleQueue()
    parts = [range(i, clients, _PROCESSES) for i in range(_PROCESSES)]
    talking = [
      context.Process(target=_talk, args=(kind, address, part, seconds, out))
      for part in parts
      if part
    ]
    for one in talking:
      one.start()
    took = np.concatenate([out.get() for _ in talking])
    for one in talking:
      one.join()
    memory = process.memory_full_info().uss
    look_s = rpc.Client(address, timeout_s=60.0).snapshot_s()
  return {
    'calls_per_s': len(took) / seconds,
    'p50_ms': 1e3 * float(np.percentile(took, 50)),
    'p99_ms': 1e3 * float(np.percentile(took, 99)),
    'memory_mb': memory / 1e6,
    'snapshot_ms': 1e3 * look_s,
  }


def names(nodes: int) -> tuple[float, float, float]:
  """Microseconds of a claim and a find among so many names; kB of all."""
  with tempfile.TemporaryDirectory() as place:
    places = directory.Local(pathlib.Path(place))
    began = time.perf_counter()
    for node in range(nodes):
      places.claim(f'actor/{node}')
    claim = (time.perf_counter() - began) / nodes
    began = time.perf_counter()
    for node in range(0, nodes, max(1, nodes // 100)):
      places.find(f'actor/{node}')
    found = len(range(0, nodes, max(1, nodes // 100)))
    find = (time.perf_counter() - began) / found
    files = [f for f in pathlib.Path(place).rglob('*') if f.is_file()]
    size = sum(f.stat().st_size for f in files)
  return 1e6 * claim, 1e6 * find, size / 1e3


def names_of_ray() -> dict[int, tuple[float, float, float]]:
  """The same for the actor of names of a Ray, whose process grows by the kB.

  It holds the names of all numbers of nodes one after the other.
  """
  import ray

  with tempfile.TemporaryDirectory(prefix='b-', dir='/tmp') as place:
    ray.init(
      num_cpus=1,
      include_dashboard=False,
      object_store_memory=100 << 20,
      log_to_driver=False,
      logging_level=logging.ERROR,
      _temp_dir=place,
    )
    found: dict[int, tuple[float, float, float]] = {}
    try:
      actor: Any = actors.names()
      ask = actor.__ray_call__.remote(lambda names: os.getpid())
      process = psutil.Process(ray.get(ask))
      before = process.memory_full_info().uss
      for nodes in NODES:
        began = time.perf_counter()
        for node in range(nodes):
          # As long as what an agent of a host says of a server.
          where = {
            'address': f'tls://10.0.{node % 250}.7:43210',
            'host': 'h' * 40,
          }
          ray.get(actor.claim.remote(f'actor/{node}', where))
        claim = (time.perf_counter() - began) / nodes
        began = time.perf_counter()
        for node in range(nodes):
          ray.get(actor.find.remote(f'actor/{node}'))
        find = (time.perf_counter() - began) / nodes
        grown = process.memory_full_info().uss - before
        found[nodes] = (1e6 * claim, 1e6 * find, grown / 1e3)
    finally:
      ray.shutdown()
  return found


def main() -> int:
  args = common.arguments(__doc__)
  seconds = common.choose(args, 0.5, 3.0, 10.0)
  common.warn_if_busy()
  rows: list[tuple[Any, ...]] = []
  numbers: dict[str, Any] = {}
  with tempfile.TemporaryDirectory() as place:
    cases = [(nodes, 16, 'report') for nodes in NODES]
    cases += [
      (NODES[-1], clients, kind) for kind in _KINDS for clients in CLIENTS
    ]
    for number, (nodes, clients, kind) in enumerate(dict.fromkeys(cases)):
      scratch = pathlib.Path(place, str(number))
      scratch.mkdir()
      found = measure(scratch, nodes, clients, kind, seconds)
      numbers[f'{kind}, {nodes} nodes, {clients} clients'] = found
      print(f'{kind}, {nodes} nodes, {clients} clients: {found}', flush=True)
      rows.append(
        (
          kind,
          nodes,
          clients,
          f'{found["calls_per_s"]:,.0f}',
          f'{found["p50_ms"]:.2f}',
          f'{found["p99_ms"]:.2f}',
          f'{found["memory_mb"]:.0f}',
          f'{found["snapshot_ms"]:.1f}',
        )
      )
  tables = {
    'names, files': {nodes: names(nodes) for nodes in NODES},
    'names, Ray': names_of_ray(),
  }
  for name, columns in tables.items():
    numbers[name] = {str(n): values for n, values in columns.items()}
  common.publish(
    common.Result(
      'Counter, parameters and directory of a large program',
      [
        common.table(
          (
            'call',
            'nodes',
            'clients',
            'calls/s',
            'p50, ms',
            'p99, ms',
            'memory, MB',
            'live view, ms',
          ),
          rows,
        ),
        *(
          common.table(
            (name, 'claim, us', 'find, us', 'all, kB'),
            [
              (n, *(f'{value:.0f}' for value in row))
              for n, row in columns.items()
            ],
          )
          for name, columns in tables.items()
        ),
      ],
      [
        'A node reports once a second, so a rate of calls is also the number '
        'of nodes at which the counter is full.',
      ],
      numbers,
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  sys.exit(main())
