"""Parts that topologies share: nodes, budgets, restart policies, checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import launchpad as lp

from murmuration.launch import experiment as experiment_lib
from murmuration.launch import rpc
from murmuration.launch.engines import restarts
from murmuration.launch.nodes import evaluator as evaluator_lib
from murmuration.launch.nodes import replay_host
from murmuration.launch.services import counter as counter_lib
from murmuration.run_records import counter_file
from murmuration.run_records import run_directory


def one_agent(config: Any) -> int:
  """`members` of a topology that trains one agent, whatever its nodes."""
  del config
  return 1


def shares(
  experiment: experiment_lib.Experiment,
  kind: str,
  split: Callable[[int], Sequence[int]],
) -> list[int]:
  """Actor steps at which each node KIND/i has done its part, in all its lives.

  `split` makes parts of a number of steps. A resumed run may have more or fewer
  nodes than it had: what is left of the budget is split, and comes on top of
  what each of them has done.
  """
  state: dict[str, Any] = {}
  if experiment.run_dir is not None:
    run = run_directory.RunDirectory(experiment.run_dir)
    state = counter_file.counted(run.metrics_directory)
  counts = state.get('node_totals', {})
  made = state.get('totals', {}).get('actor_steps', 0)
  left = max(experiment.total_steps - made, 0)
  return [
    counts.get(f'{kind}/{i}', {}).get('actor_steps', 0) + part
    for i, part in enumerate(split(left))
  ]


def counter(
  program: lp.Program,
  experiment: experiment_lib.Experiment,
  budget: Mapping[str, int] | None = None,
) -> Any:
  """Adds the counter, which ends the run, and the limits of restarts.

  `budget` maps a count's name to the total at which the run ends; None uses the
  experiment's actor steps. Returns the counter's handle.
  """
  run = experiment.run
  restarts.assign(
    program,
    max_restarts=run.max_restarts,
    restart_window_s=run.restart_window_s,
    silent_s=run.silent_s,
    stall_s=run.stall_s,
  )
  with program.group('counter'):
    return program.add_node(
      rpc.Node(
        counter_lib.Counter,
        experiment.run_dir,
        budget or {'actor_steps': experiment.total_steps},
        experiment.run.wall_clock_s,
      )
    )


def evaluator(
  program: lp.Program,
  experiment: experiment_lib.Experiment,
  counter: Any,
  server: Any,
  ends_run: bool = True,
) -> None:
  """Adds an evaluator of the parameters that `server` serves."""
  with program.group('evaluator'):
    program.add_node(
      lp.PyClassNode(
        evaluator_lib.Evaluator, experiment, counter, server, ends_run
      )
    )


def replay(
  program: lp.Program,
  experiment: experiment_lib.Experiment,
  make_tables: Callable[[], list[Any]],
  shards: int = 1,
  **options: bool,
) -> tuple[list[Any], list[Any]]:
  """Adds a node for each shard of replay, with `options` of `ReplayHost`.

  Returns the handles of the nodes, and those of their addresses.
  """
  hosts, addresses = [], []
  with program.group('replay'):
    for i in range(shards):
      node = replay_host.HostNode(
        replay_host.ReplayHost,
        make_tables,
        experiment.run_dir,
        first_shard=i,
        timeout_s=60.0,
        **options,
      )
      hosts.append(program.add_node(node))
      addresses.append(node.shard_handle(0))
  return hosts, addresses


def let_all_come_back(program: lp.Program) -> None:
  """Restarts any node that dies; the run ends when the counter returns."""
  restarts.assign(program, come_back=True, ends_run='counter')


def require_transitions(experiment: experiment_lib.Experiment) -> None:
  """Raises ValueError if rollouts would never reach a replay node."""
  agent = experiment.agent
  if agent.experience == 'unrolls':
    raise ValueError(
      f"run.replay='node': {agent.name} has no replay that could be on a node; "
      'each worker learns from its own rollouts. Leave it out.'
    )


def require_own_replay(
  experiment: experiment_lib.Experiment, topology: str
) -> None:
  """Raises ValueError if `run.replay` asks for a node of replay."""
  if experiment.run.replay == 'node':
    raise ValueError(
      f"run.replay='node': {topology} has no replay nodes. Leave it out, or "
      'use actor_learner, swarm or parameter_server.'
    )
