"""Calls and arrays by our transport and by Courier, in turns.

Courier carries bare bytes here; ours encodes and decodes each value, as every
call of a program does. Each side has the Python of its users: ours that of the
project's environment, Courier that of Launchpad's wheel as it comes (CPython
3.10, TensorFlow 2.12; `python requirements/environment.py courier` makes it). A
third column is ours on Courier's Python.
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import subprocess
import sys
from typing import Any

from tests.benchmarks import common

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
_PEER = common.ROOT / '.peers' / 'courier' / 'bin' / 'python'
_SIDE = common.ROOT / 'tests' / 'benchmarks' / 'rpc_side.py'
_ON_OWN, _ON_PEER, _COURIER = 'ours', 'ours, on its Python', 'Courier'
_LONG_S = 20.0  # to start, and for 20 of the largest arrays


class Side:
  """A process of rpc_side.py."""

  def __init__(self, python: str, system: str):
    self._system = system
    self._process = subprocess.Popen(
      [python, str(_SIDE), system],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def ask(self, seconds: float, **what: int) -> float:
    """Calls/s of `threads=`, or us of a call of `size=` bytes.

    Raises:
      RuntimeError: the process has ended.
    """
    assert self._process.stdin is not None and self._process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.write(json.dumps({**what, 'seconds': seconds}) + '\n')
      self._process.stdin.flush()
    line = self._process.stdout.readline()
    if not line:
      code = self._process.wait(_LONG_S)
      raise RuntimeError(f'{_SIDE} {self._system} ended with exit code {code}.')
    return json.loads(line)

  def close(self) -> None:
    """Ends it."""
    with contextlib.suppress(BrokenPipeError):
      self._process.communicate(timeout=_LONG_S)


def measure(sides: dict[str, Side], rounds: int, seconds: float) -> Any:
  """{'n threads' or a size: {system: median of the rounds}}."""
  asked = {
    **{f'{threads} threads': {'threads': threads} for threads in THREADS},
    **{name: {'size': size} for name, size in SIZES.items()},
  }
  found: Any = {what: {name: [] for name in sides} for what in asked}
  for _ in range(rounds):
    for what, question in asked.items():
      for name, side in sides.items():
        found[what][name].append(side.ask(seconds, **question))
  return {
    what: {name: statistics.median(x) for name, x in values.items()}
    for what, values in found.items()
  }


def ratio(what: str, values: dict[str, float], ours: str) -> float:
  """How many times as fast as Courier."""
  if 'threads' in what:
    return values[ours] / values[_COURIER]
  return values[_COURIER] / values[ours]


def main() -> int:
  args = common.arguments(__doc__)
  if not _PEER.exists():
    print(
      f'{_PEER} is not there: python requirements/environment.py courier '
      'makes it.',
      file=sys.stderr,
    )
    return 2
  common.warn_if_busy()
  with contextlib.ExitStack() as stack:
    sides = {}
    for name, python, system in (
      (_COURIER, str(_PEER), 'courier'),
      (_ON_PEER, str(_PEER), 'ours'),
      (_ON_OWN, sys.executable, 'ours'),
    ):
      sides[name] = Side(python, system)
      stack.callback(sides[name].close)
    found = measure(
      sides,
      common.choose(args, 1, 3, 5),
      common.choose(args, 0.05, 0.7, 2.0),
    )
  rows, missed = [], []
  for what, values in found.items():
    is_rate = 'threads' in what
    unit = 'calls/s, 100 B' if is_rate else 'p50, us'
    rows.append(
      (
        f'{what}: {unit}',
        *(f'{values[name]:,.0f}' for name in sides),
        *(f'{ratio(what, values, own):.2f}' for own in (_ON_PEER, _ON_OWN)),
      )
    )
    least = _LEAST_RATE if is_rate else 1.0
    times = ratio(what, values, _ON_OWN)
    if (is_rate or what in _NO_SLOWER) and times < least:
      missed.append(f'{what}: {times:.2f} times as fast, wanted {least}')
  own = platform.python_version()
  heads = (
    *('echo', _COURIER, 'ours, its Python', f'ours, {own}'),
    *('times, its Python', f'times, {own}'),
  )
  common.publish(
    common.Result(
      'Remote calls: our sockets against Courier',
      [common.table(heads, rows)],
      [
        'Client and server are a process each. Ours encodes and decodes each '
        'value (launch/rpc/codec.py); Courier carries bytes as they are. Its '
        f'Python is CPython 3.10, for which alone it has a file; ours is {own}.'
        ' Times: as fast as Courier.',
        *(missed or ['All bars are met.']),
      ],
      found,
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
