"""What every topology has."""

from __future__ import annotations

from typing import Any

import launchpad as lp

from launch import experiment as experiment_lib
from launch import rpc
from launch.engines import restarts
from launch.services import counter as counter_lib


def counter(program: lp.Program, experiment: experiment_lib.Experiment) -> Any:
  """Adds the counter, which ends the run, and limits. Returns its handle."""
  run = experiment.run
  restarts.limit(
    program,
    restarts.Limits(
      max_restarts=run.max_restarts,
      restart_window_s=run.restart_window_s,
      silent_s=run.silent_s,
      stall_s=run.stall_s,
    ),
  )
  with program.group('counter'):
    return program.add_node(
      rpc.Node(
        counter_lib.Counter,
        experiment.run_dir,
        {'actor_steps': experiment.total_steps},
        experiment.run.wall_clock_s,
      )
    )
