"""Where a program runs: `engines.run(program, how)`."""

import pathlib

import launchpad as lp

from murmuration.launch.engines import linux
from murmuration.launch.engines import processes
from murmuration.launch.engines import threads
from murmuration.launch.engines import zygote
from murmuration.launch.engines.cluster.options import Options
from murmuration.launch.engines.cluster.options import Refused
from murmuration.launch.engines.cluster.options import check as check_ray
from murmuration.launch.engines.cluster.options import (
  check_program as check_on_ray,
)
from murmuration.launch.engines.state import FAILED
from murmuration.launch.engines.state import OnTick
from murmuration.launch.engines.state import Outcome
from murmuration.launch.engines.state import RunState

NAMES = ('local_mt', 'local_mp', 'ray')

__all__ = [
  'FAILED',
  'NAMES',
  'Options',
  'Outcome',
  'Refused',
  'RunState',
  'check',
  'check_on_ray',
  'check_ray',
  'run',
]


def check(how: str) -> None:
  """Raises ValueError where this process cannot start nodes on an engine."""
  if how == 'local_mp':
    zygote.check_fork()


def run(
  program: lp.Program,
  how: str,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: OnTick | None = None,
  ray: Options | None = None,
) -> Outcome:
  """Runs a program to its end.

  Ends when all nodes have returned, when a node of an `EndsRun` group returns,
  when a node calls lp.stop(), when a node fails for good (see restarts.py), at
  SIGTERM, or at Ctrl-C (a second one kills at once). The nodes are then asked
  to stop, and have 8 s for it. A run that ended by itself as Ctrl-C came has
  exit code 0, unless a second one broke off its end.

  Args:
    program: not yet launched.
    how: 'local_mt' (threads of this process), 'local_mp' (processes) or 'ray'
      (processes on the hosts of a Ray cluster).
    run_dir: a log per node is in run_dir/logs, but of local_mt.
    on_tick: called from this thread about every 0.2 s, and once at the end;
      what it raises ends the launcher.
    ray: which Ray, and what nodes ask of it; only for 'ray'.

  Raises:
    ValueError: unknown engine, or a program that cannot run, see `check`.
    Refused: a ValueError of Ray: it is missing, or cannot take the program.
  """
  if how not in NAMES:
    raise ValueError(
      f'There is no engine {how!r}: choose from {", ".join(NAMES)}.'
    )
  check(how)
  linux.allow_descriptors()
  if how == 'ray':
    # Here, so that other runs do not import Ray.
    from murmuration.launch.engines.cluster import engine

    return engine.run(program, run_dir=run_dir, on_tick=on_tick, options=ray)
  local = threads.run if how == 'local_mt' else processes.run
  return local(program, run_dir=run_dir, on_tick=on_tick)
