"""Calls and arrays by our transport and by Courier, in turns.

Courier carries bare bytes here; ours encodes and decodes each value, as every
call of a program does. The project's own environment has no Courier, so this
goes on in one with Launchpad's wheel as it comes (CPython 3.10, TensorFlow
2.12): `python requirements/environment.py courier`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import importlib.util
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from launch import rpc  # noqa: E402
from launch.rpc import directory  # noqa: E402
from tests.benchmarks import common  # noqa: E402

SIZES = {
  '100 B': 100,
  '18 kB': 18_000,
  '600 kB': 600_000,
  '1 MiB': 1 << 20,
  '6 MB': 6_000_000,
}
THREADS = (1, 4)
_LEAST_RATE = 1.5  # of Courier's calls/s
_NO_SLOWER = ('18 kB', '600 kB', '6 MB')
_PYTHON = common.ROOT / '.peers' / 'courier' / 'bin' / 'python'


class Echo:
  """What is served by both."""

  serves = ('echo',)

  def echo(self, x: Any) -> Any:
    return x


def _serve_ours(address: str, stop) -> None:
  with rpc.serve(Echo(), address):
    stop.wait()


def _serve_courier(address: str, stop) -> None:
  import courier

  server = courier.Server(port=int(address.rsplit(':', 1)[1]))
  server.Bind('echo', lambda x: x)
  server.Start()
  stop.wait()
  os._exit(0)  # Its threads do not end by themselves.


def _courier_is_here() -> bool:
  """Whether it is the real one, and not the stub of the environment."""
  try:
    return importlib.util.find_spec('courier.python.client') is not None
  except ImportError:
    return False


def _courier_client(address: str) -> Callable[[Any], Any]:
  import courier

  return courier.Client(address, call_timeout=60.0).echo


def latency_us(echo: Callable[[Any], Any], value: Any, seconds: float) -> float:
  """The median of calls, one at a time."""
  for _ in range(5):
    echo(value)
  times: list[float] = []
  end = time.perf_counter() + seconds
  while (start := time.perf_counter()) < end or len(times) < 20:
    echo(value)
    times.append(time.perf_counter() - start)
  return 1e6 * statistics.median(times)


def rate(echo: Callable[[Any], Any], threads: int, seconds: float) -> float:
  """Calls of 100 B a second by so many threads."""
  value, counts = bytes(100), [0] * threads
  echo(value)  # connects
  end = time.perf_counter() + seconds

  def call(index: int) -> None:
    while time.perf_counter() < end:
      echo(value)
      counts[index] += 1

  running = [
    threading.Thread(target=call, args=(index,)) for index in range(threads)
  ]
  for thread in running:
    thread.start()
  for thread in running:
    thread.join()
  return sum(counts) / seconds


def measure(clients: dict[str, Any], rounds: int, seconds: float) -> Any:
  """{'calls/s, 1 threads' or a size: {system: median of the rounds}}."""
  found: dict[str, dict[str, list[float]]] = {}

  def note(what: str, system: str, value: float) -> None:
    found.setdefault(what, {}).setdefault(system, []).append(value)

  for _ in range(rounds):
    for threads in THREADS:
      for system, (echo, _) in clients.items():
        note(f'{threads} threads', system, rate(echo, threads, seconds))
    for name, size in SIZES.items():
      for system, (echo, value) in clients.items():
        note(name, system, latency_us(echo, value(size), seconds))
  return {
    what: {system: statistics.median(x) for system, x in values.items()}
    for what, values in found.items()
  }


def main() -> int:
  args = common.arguments(__doc__)
  if not _courier_is_here():
    if not _PYTHON.exists() or sys.executable == str(_PYTHON):
      print(
        f'{_PYTHON} is not there, or has no Courier: python '
        'requirements/environment.py courier makes it.',
        file=sys.stderr,
      )
      return 2
    os.execv(_PYTHON, [str(_PYTHON), *sys.argv])
  seconds = common.choose(args, 0.05, 0.7, 2.0)
  common.warn_if_busy()
  with tempfile.TemporaryDirectory() as scratch:
    found = _measure(args, pathlib.Path(scratch), seconds)
  rows, numbers, missed = [], {}, []
  for what, values in found.items():
    is_rate = 'threads' in what
    ours, courier = values['ours'], values['Courier']
    ratio = ours / courier if is_rate else courier / ours
    unit = 'calls/s, 100 B' if is_rate else 'p50, us'
    rows.append(
      (f'{what}: {unit}', f'{courier:,.0f}', f'{ours:,.0f}', f'{ratio:.2f}')
    )
    numbers[what] = values
    least = _LEAST_RATE if is_rate else 1.0
    if (is_rate or what in _NO_SLOWER) and ratio < least:
      missed.append(f'{what}: {ratio:.2f} times as fast, wanted {least}')
  common.publish(
    common.Result(
      'Remote calls: our sockets against Courier',
      [common.table(('echo', 'Courier', 'ours', 'times as fast'), rows)],
      [
        'Client and server are a process each. Ours encodes and decodes each '
        'value (launch/rpc/codec.py); Courier carries bytes as they are. Both '
        'on CPython 3.10, for which alone Courier has a file.',
        *(missed or ['All bars are met.']),
      ],
      numbers,
    ),
    args,
  )
  return 0


def _measure(
  args: argparse.Namespace, scratch: pathlib.Path, seconds: float
) -> Any:
  context = multiprocessing.get_context('spawn')
  stop = context.Event()
  own = f'unix:{scratch}/server'
  port = f'localhost:{directory.pick_port(set())}'
  servers = [
    context.Process(target=serve, args=(address, stop), daemon=True)
    for serve, address in ((_serve_ours, own), (_serve_courier, port))
  ]
  for server in servers:
    server.start()
  try:
    client = rpc.Client(own, timeout_s=60.0)
    clients = {
      'ours': (client.echo, _value),
      'Courier': (_courier_client(port), bytes),
    }
    return measure(clients, common.choose(args, 1, 3, 5), seconds)
  finally:
    stop.set()
    for server in servers:
      server.join(10)


def _value(size: int) -> Any:
  """Big ones are arrays, as in programs."""
  return bytes(size) if size < 1000 else np.zeros(size, np.uint8)


if __name__ == '__main__':
  sys.exit(main())
