"""Refuses a run whose replay or batches cannot fit into memory."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import launchpad as lp
import psutil

from murmuration.launch import experiment as experiment_lib
from murmuration.launch.nodes import worker

# Reverb compresses frames of games to about a tenth, and numbers hardly at all.
# Only what would not fit at this factor is refused.
_COMPRESSION = 20


def check(experiment: experiment_lib.Experiment, program: lp.Program) -> None:
  """Raises ValueError for replay, or a batch, that the machine cannot hold.

  All else, such as TensorFlow and the environments, comes on top.
  """
  agent = experiment.agent
  nodes = [node for group in program.groups.values() for node in group]
  learners = sum(map(_learns, nodes))
  if agent.unroll_length is not None or not learners:
    return
  run = experiment.run
  # Learners with actors of their own share replay and batch. Others have their
  # own, unless replay is a node.
  apart = 1 if 'actor' in program.groups else learners
  replays = 1 if 'replay' in program.groups else apart
  members = experiment.num_agents
  kept = min(
    max(members, replays) * experiment.max_replay_size,
    members * run.steps_per_agent,  # there are no more transitions
  )
  updates = agent.updates_per_call or run.updates_per_call
  sampled = max(members, apart) * updates * agent.batch_size
  item = agent.transition_layout().num_bytes
  compression = 1 if run.replay == 'ring' else _COMPRESSION
  memory = memory_bytes()
  for number, least, names in (
    (kept, kept * item // compression, 'agent.max_replay_size'),
    (sampled, sampled * item, 'agent.batch_size or run.updates_per_call'),
  ):
    if least > memory:
      raise ValueError(
        f'{number:,} transitions of {item:,} bytes need at least '
        f'{least / 1e9:,.1f} GB; this machine has {memory / 1e9:,.1f} GB. '
        f'Lower {names}.'
      )


def memory_bytes() -> int:
  """Memory of the machine, or of the container that this runs in."""
  limits = [psutil.virtual_memory().total]
  for name in ('memory.max', 'memory/memory.limit_in_bytes'):
    with contextlib.suppress(OSError, ValueError):  # 'max', or not there
      limits.append(int(pathlib.Path('/sys/fs/cgroup', name).read_text()))
  return min(limits)


def _learns(node: Any) -> bool:
  made = getattr(node, '_constructor', None)
  return isinstance(made, type) and issubclass(made, worker.Worker)
