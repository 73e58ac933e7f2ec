"""IMPALA on Pong beside dm-acme's: environment steps per second, with learning.

ALE/Pong-v5, four frames a step, the shallow model without memory, unrolls of
20, batches of 16: ours as a user starts it, dm-acme's in one process and as a
program of two actors, in turns on the same machine. Rates are those of a window
after the first update.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import sys
from typing import Any

from tests.benchmarks import bench_impala
from tests.benchmarks import common
from tests.benchmarks.peers import run as peers

_TASK = 'ALE/Pong-v5'
_BATCH = 16
_NEEDED = 5  # times dm-acme's steps/s
_OURS = 'Murmuration, preset'
_ACME = ('dm-acme IMPALA', 'dm-acme IMPALA, 2 actors')
_PRESET = (
  'impala:pong',
  '--config.agent.anneal_env_steps=None',
  *common.NO_END,
  common.NO_TARGET,
)


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 2, 3)
  window_s = common.choose(args, 10.0, 20.0, 30.0)
  common.warn_if_busy()
  systems: dict[str, Callable[[], dict[str, Any] | None]] = {
    _OURS: lambda: bench_impala.measure(_PRESET, window_s, _BATCH)
  }
  for name in _ACME:
    systems[name] = functools.partial(
      peers.measure,
      'acme_impala',
      task=_TASK,
      batch_size=_BATCH,
      seconds=window_s,
      actors=2 if name.endswith('actors') else 0,
    )
  found = common.in_turns(systems, repetitions)
  rates, medians = common.rates_table(found)
  notes = [
    f'{medians[_OURS] / medians[name]:.1f} times {name}; needed {_NEEDED}.'
    for name in _ACME
    if name in medians
  ]
  notes.append(f'Window: {window_s:g} s after the first update.')
  common.publish(
    common.Result(
      'IMPALA on Pong beside dm-acme, the shallow model, T = 20, B = 16',
      [rates],
      notes,
      {'runs': found},
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
