"""What a run needs of the machine, estimated before anything starts.

    needs.check(experiment, program, own_bytes)    ValueError for what cannot be

The figures are of what grows with the settings: replay, one call of a learner,
parameters and processes. TensorFlow, environments and Reverb's own memory come
on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import logging
import math
import os
import pathlib
import resource
from typing import Any

import launchpad as lp

from murmuration.environment_loops import atari
from murmuration.environment_loops import building
from murmuration.environment_loops import environments
from murmuration.launch import experiment as experiment_lib
from murmuration.launch.nodes import worker

_logger = logging.getLogger(__name__)
# Reverb compresses what it holds: frames of games to about a tenth, numbers
# hardly at all. Only what would not fit at this factor is refused.
_COMPRESSION = 20
# Of a node, before it does anything: its own part of a forked process.
_PROCESS_BYTES = 20_000_000
# Of an environment: its numbers and its random numbers, or a simulator. Those
# of gymnasium have 0.8 to 3 kB, MuJoCo's 0.5 to 0.6 MB, Atari's 0.6 MB.
_PLAIN_BYTES = 700
_SIMULATOR_BYTES = 400_000
# Reverb and gRPC beside TensorFlow's own.
_THREADS = 10
_GROUPS = '/sys/fs/cgroup'


@dataclasses.dataclass(frozen=True)
class Needs:
  """An estimate of a run."""

  replay_bytes: int  # of all shards, when they are full or the budget is used
  call_bytes: int  # of what the learners sample for one call
  parameter_bytes: int  # theta, target and optimizer of all members
  processes: int  # nodes of the program
  threads: int  # of all of them
  # Where the nodes are threads of one process, which share TensorFlow's.
  least_threads: int
  # Of what the topology keeps besides, by the setting that says how much.
  own_bytes: Mapping[str, int]

  @property
  def least_bytes(self) -> int:
    """Memory below which the run cannot be."""
    return (
      self.replay_bytes // _COMPRESSION
      + self.call_bytes
      + self.parameter_bytes
      + sum(self.own_bytes.values())
      + self.processes * _PROCESS_BYTES
    )

  def __str__(self) -> str:
    own = ''.join(
      f'{_gb(n)} for {name}, ' for name, n in self.own_bytes.items() if n > 1e6
    )
    return (
      f'about {_gb(self.replay_bytes)} for replay (uncompressed), '
      f'{_gb(self.call_bytes)} for a call of the learner, '
      f'{_gb(self.parameter_bytes)} for parameters, {own}and '
      f'{self.processes:,} processes with {self.threads:,} threads'
    )


def of(
  experiment: experiment_lib.Experiment,
  program: lp.Program,
  own_bytes: Mapping[str, int],
) -> Needs:
  """Estimates what a program needs; `own_bytes` as in `Needs`."""
  agent: Any = experiment.make_agent()
  run, members = experiment.run, experiment.num_agents
  updates = agent.updates_per_call or run.updates_per_call
  replay, sampled = 0, updates * agent.batch_size
  nodes = [node for group in program.groups.values() for node in group]
  learning = sum(map(_learns, nodes))
  # Learners with actors of their own kind share a batch out. Others sample each
  # a whole one, and have a replay each, unless they say otherwise.
  sampling = 1 if 'actor' in program.groups else learning
  apart = 1 if 'replay' in program.groups else sampling
  if not learning:  # nor is anything kept to learn from
    sampled = item = 0
  elif agent.experience != 'unrolls':
    item = agent.transition_layout().num_bytes
    # More is never written than is lived through.
    limit = max(members, apart) * experiment.max_replay_size
    replay = min(limit, members * run.steps_per_agent) * item
  else:
    spec = environments.spec(experiment.environment)
    size = 1 if spec.observation_dtype == 'uint8' else 4
    item = size * math.prod(spec.observation_shape)
    # A batch counts unrolls; but of a rollout, which is learned from several
    # times, minibatches of its steps.
    rollout = getattr(getattr(agent, 'config', None), 'rollout_steps', 0)
    sampled = rollout or sampled * agent.unroll_length
  slots = getattr(getattr(agent, 'optimizer', None), 'slots', 0)
  # The layout of an agent with a learner of its own is read from networks that
  # TensorFlow makes, and nodes cannot be forked once it runs.
  parameters = 0 if agent.learner_class else agent.layout.size
  # Each of several learners has a theta and a target of its own.
  copies = max(members, learning)
  return Needs(
    replay_bytes=replay,
    call_bytes=max(members, sampling) * sampled * item,
    parameter_bytes=copies * parameters * 4 * (2 + slots),
    processes=len(nodes),
    threads=len(nodes) * _THREADS + learning * run.tf_threads,
    least_threads=len(nodes) + (run.tf_threads if learning else 0),
    own_bytes=own_bytes,
  )


def check(
  experiment: experiment_lib.Experiment,
  program: lp.Program,
  own_bytes: Mapping[str, int],
) -> None:
  """Refuses a run that this machine cannot hold, with the arithmetic."""
  needs = of(experiment, program, own_bytes)
  memory, processes = memory_bytes(), max_processes()
  if needs.least_bytes > memory:
    _, lower = max(
      (needs.replay_bytes // _COMPRESSION, 'agent.max_replay_size'),
      (needs.call_bytes, 'agent.batch_size or run.updates_per_call'),
      (needs.parameter_bytes, 'the sizes of the networks'),
      *((number, name) for name, number in own_bytes.items()),
      (needs.processes * _PROCESS_BYTES, 'the number of nodes'),
    )
    raise ValueError(
      f'This run needs {needs}: {_gb(needs.least_bytes)} at the very least, '
      f'however well replay is compressed. The machine has {_gb(memory)}. '
      f'Lower {lower}.'
    )
  # Threads count as processes for Linux.
  if needs.least_threads > processes:
    raise ValueError(
      f'This run needs {needs}. The machine lets a user have {processes:,} of '
      'these together. Lower run.tf_threads or the number of nodes.'
    )
  if needs.threads > processes:
    _logger.warning(
      'This run needs %s; the machine lets a user have %s of these together.',
      needs,
      f'{processes:,}',
    )
  if needs.replay_bytes > memory:
    _logger.warning(
      'This run needs %s; the machine has %s. It fits only if replay '
      'compresses to %.0f%%.',
      needs,
      _gb(memory),
      100 * memory / needs.replay_bytes,
    )


def environment_bytes(name: str) -> int:
  """Memory of one environment at the very least."""
  module = str(building.registered(name).entry_point)
  simulates = atari.is_atari(name) or module.startswith('gymnasium.envs.mujoco')
  return _SIMULATOR_BYTES if simulates else _PLAIN_BYTES


def memory_bytes() -> int:
  """Memory that this process and its children may have."""
  have = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  group = _of_group('memory.max', 'memory', 'memory.limit_in_bytes')
  return min([have, *group])


def max_processes() -> int:
  """Processes and threads that a user may have here."""
  limits = [1 << 62, *_of_group('pids.max', 'pids', 'pids.max')]
  for name in ('pid_max', 'threads-max'):
    with contextlib.suppress(OSError, ValueError):
      limits.append(int(pathlib.Path('/proc/sys/kernel', name).read_text()))
  soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
  # Root is not held to it.
  if soft != resource.RLIM_INFINITY and os.geteuid():
    limits.append(soft)
  return min(limits)


def _of_group(name: str, controller: str, name_v1: str) -> Iterator[int]:
  """Limits of this process's control group and of those it is in."""
  try:
    lines = pathlib.Path('/proc/self/cgroup').read_text().splitlines()
  except OSError:
    return
  for line in lines:
    _, controllers, group = line.split(':', 2)
    if not controllers:  # of version 2
      path, file = pathlib.Path(_GROUPS), name
    elif controller in controllers.split(','):
      path, file = pathlib.Path(_GROUPS, controller), name_v1
    else:
      continue
    # In a container the group may have no path: its root is the group then.
    path /= group.strip('/')
    for one in (path, *path.parents):
      with contextlib.suppress(OSError, ValueError):  # 'max', or not there
        yield int((one / file).read_text())


def _learns(node: Any) -> bool:
  """Whether a node has the threads of run.tf_threads."""
  made = getattr(node, '_constructor', None)
  return isinstance(made, type) and issubclass(made, worker.Worker)


def _gb(num_bytes: float) -> str:
  """'0.003 GB', '1.2 GB', '56,000 GB'."""
  gigabytes = num_bytes / 1e9
  return f'{gigabytes:,.0f} GB' if gigabytes >= 10 else f'{gigabytes:.2g} GB'
