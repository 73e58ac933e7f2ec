"""One side of bench_rpc.py: a server, a client, and what is asked of them.

    python tests/benchmarks/rpc_side.py ours|courier

A JSON line comes in, `{"threads": n, "seconds": s}` or `{"size": bytes,
"seconds": s}`, and one goes out: calls/s of 100 bytes, or the median of single
calls in us. A process of its own, so that each side is measured by the Python
that its users have: Courier's file is for CPython 3.10 alone.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

from murmuration.launch import rpc
from murmuration.launch.rpc import directory

_LEAST_CALLS = 20


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


def _ours(address: str) -> Callable[[Any], Any]:
  return rpc.Client(address, timeout_s=60.0).echo


def _courier(address: str) -> Callable[[Any], Any]:
  import courier

  return courier.Client(address, call_timeout=60.0).echo


def latency_us(echo: Callable[[Any], Any], value: Any, seconds: float) -> float:
  """The median of calls, one at a time."""
  for _ in range(5):
    echo(value)
  times: list[float] = []
  end = time.perf_counter() + seconds
  while (start := time.perf_counter()) < end or len(times) < _LEAST_CALLS:
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


def _value(system: str, size: int) -> Any:
  """Courier carries bare bytes; our large values are arrays, as in programs."""
  if system == 'courier' or size < 1000:
    return bytes(size)
  return np.zeros(size, np.uint8)


def main(system: str) -> int:
  context = multiprocessing.get_context('spawn')
  stop = context.Event()
  with tempfile.TemporaryDirectory() as scratch:
    if system == 'ours':
      address, serve, connect = f'unix:{scratch}/server', _serve_ours, _ours
    else:
      address = f'localhost:{directory.pick_port(set())}'
      serve, connect = _serve_courier, _courier
    server = context.Process(target=serve, args=(address, stop), daemon=True)
    server.start()
    try:
      echo = connect(address)
      for line in sys.stdin:
        asked = json.loads(line)
        if 'threads' in asked:
          found = rate(echo, asked['threads'], asked['seconds'])
        else:
          value = _value(system, asked['size'])
          found = latency_us(echo, value, asked['seconds'])
        print(json.dumps(found), flush=True)
    finally:
      stop.set()
      server.join(10)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1]))
