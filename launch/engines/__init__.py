"""Where a program runs: `engines.run(program, how)`."""

import pathlib

import launchpad as lp

from launch.engines import processes
from launch.engines import threads
from launch.engines.processes import warm_up
from launch.engines.state import NodeState
from launch.engines.state import OnTick
from launch.engines.state import Outcome
from launch.engines.state import RunState

_ENGINES = {'local_mt': threads.run, 'local_mp': processes.run}

NAMES = tuple(_ENGINES)

__all__ = [
  'NAMES',
  'NodeState',
  'OnTick',
  'Outcome',
  'RunState',
  'run',
  'warm_up',
]


def run(
  program: lp.Program,
  how: str,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: OnTick | None = None,
  tick_s: float = 0.2,
) -> Outcome:
  """Runs a program to its end.

  Ends when all nodes have returned, when a node of an `EndsRun` group returns,
  when a node calls lp.stop(), when a node fails for good (see policies.py), at
  SIGTERM, or at Ctrl-C (a second one kills at once). The nodes are then asked
  to stop, and have 8 s for it.

  Args:
    program: a Launchpad program, not yet launched.
    how: 'local_mt' (threads of this process) or 'local_mp' (processes).
    run_dir: local_mp writes a log per node to run_dir/logs.
    on_tick: called from this thread about every tick_s, and once at the end.
    tick_s: seconds.

  Returns:
    The exit code, the reason, and the nodes.

  Raises:
    ValueError: unknown engine, or a program that cannot run.
    RuntimeError: TensorFlow ran in this process already (local_mp).
  """
  if how not in _ENGINES:
    raise ValueError(
      f'There is no engine {how!r}: choose from {", ".join(_ENGINES)}.'
    )
  return _ENGINES[how](program, run_dir=run_dir, on_tick=on_tick, tick_s=tick_s)
