"""local_mp: one process per node, forked from one process that imported all.

The program, its addresses and its serialization are Launchpad's; the runner is
not. Launchpad's own takes a crashed node for a clean exit, cannot restart one,
and leaves orphans when it is killed.
"""

from collections.abc import Mapping, Sequence
import functools
import os
import pathlib
import select
import signal
import sys
from typing import Any

import launchpad as lp

from launch import pulse
from launch.engines import child
from launch.engines import linux
from launch.engines import node_logs
from launch.engines import prepare
from launch.engines import restarts
from launch.engines import scratch as scratch_lib
from launch.engines import signals as signals_lib
from launch.engines import state as state_lib
from launch.engines import supervision
from launch.engines import watch as watch_lib
from launch.engines import zygote
from launch.rpc import directory


def run(
  program: lp.Program,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: state_lib.OnTick | None = None,
) -> state_lib.Outcome:
  """Runs a program with one process per node; see engines.run."""
  with scratch_lib.Scratch() as scratch, signals_lib.Signals() as signals:
    with prepare.temporary_files_in(scratch):
      nodes = prepare.prepare(
        program,
        lp.LaunchType.LOCAL_MULTI_PROCESSING,
        directory.Local(scratch),
        functools.partial(prepare.ask_to_stop, os.getpid()),
      )
    paths = log_paths(nodes, run_dir or scratch)
    board = pulse.Board(scratch, len(nodes))
    watch = watch_lib.Watch(board.slots, restarts.limits_of(program))
    kept = paths if run_dir else [None] * len(nodes)
    with _Local(nodes, paths, board.slots, scratch) as backend:
      return supervision.Supervisor(
        backend, nodes, kept, signals, on_tick, watch
      ).run()


class Backend:
  """Nodes as processes of zygotes, wherever those are: a supervision.Backend.

  A subclass says how a zygote is reached.
  """

  kills = True

  def __init__(
    self,
    nodes: Sequence[prepare.PreparedNode],
    log_paths: Sequence[pathlib.Path],
    slots: Sequence[pulse.Slot],
  ):
    self._nodes = nodes
    self._slots = slots
    self._logs = node_logs.Logs(log_paths)
    # Now: it may be gone when a node is started again.
    self._cwd = os.getcwd()

  def _signal(self, index: int, number: int) -> None:
    """Sends a signal to a node's process."""
    raise NotImplementedError

  def _request(self, index: int, again: int) -> dict[str, Any]:
    """What child.run asks for, as far as it is the same on all hosts."""
    self._logs.begins(index)
    node = self._nodes[index]
    return {
      'index': index,
      'name': node.name,
      'command': node.executable.command_as_list,
      'log': str(self._logs.paths[index]),
      'names': node.names,
      'restarts': again,
      'cwd': self._cwd,
      'path': sys.path,
    }

  def stop(self, index: int) -> None:
    self._signal(index, signal.SIGTERM)
    # Somebody may have stopped it: then it hears nothing until it goes on.
    self._signal(index, signal.SIGCONT)

  def kill(self, indices: Sequence[int]) -> list[str]:
    where = self._logs.stacks(
      indices, lambda index: self._signal(index, child.DUMP_SIGNAL)
    )
    for index in indices:
      self._signal(index, signal.SIGKILL)
    return where

  def resume(self, index: int) -> None:
    self._signal(index, signal.SIGCONT)

  def _exited(self, message: Mapping[str, Any]) -> supervision.Event:
    """What a zygote's word on an ended process means."""
    index, pid, code = message['index'], message['pid'], message['code']
    slot = self._slots[index]
    failed = bool(code) or not slot.done
    error = None
    if failed:
      said = slot.text if slot.dead else ''
      error = self._logs.error(index, code, said, message['oom'])
    oom = code == -signal.SIGKILL and message['oom']
    killed = code in (-signal.SIGKILL, -signal.SIGTERM, child.TERMINATED)
    return supervision.Event(
      index, 'exited', pid, failed, error, killed and not oom, hopeless=oom
    )


class _Local(Backend):
  """The zygote is a child of this process."""

  def __init__(
    self,
    nodes: Sequence[prepare.PreparedNode],
    log_paths: Sequence[pathlib.Path],
    slots: Sequence[pulse.Slot],
    scratch: pathlib.Path,
  ):
    super().__init__(nodes, log_paths, slots)
    self._scratch = scratch
    self._pids: dict[int, int] = {}  # index -> pid

  def __enter__(self) -> '_Local':
    self._zygote = zygote.get()
    self._zygote.send(op='begin', scratch=str(self._scratch))
    return self

  def __exit__(self, *unused) -> None:
    self._zygote.end_run()
    if not self._zygote.alive():
      # It was killed, and the nodes died with it. Kill their children.
      zygote.kill_remains(self._pids.values(), str(self._scratch))

  def start(self, index: int, again: int) -> None:
    overrides = self._nodes[index].executable.env_overrides
    self._zygote.send(
      op='start',
      **self._request(index, again),
      env=self._zygote.changed_environment(overrides),
      scratch=str(self._scratch),
      pulse=str(self._scratch / pulse.FILE),
    )

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    events = []
    linux.wake(self._zygote.pid)  # nobody else starts nodes
    while select.select([self._zygote.channel], [], [], timeout_s)[0]:
      timeout_s = 0.0
      message = zygote.receive(self._zygote.channel)
      if message is None:
        raise supervision.BackendLost(
          'the process that starts the nodes was killed (out of memory? see '
          '`dmesg`): start the run again, with --resume=...'
        )
      index, pid = message['index'], message['pid']
      if message['event'] != 'exited':
        self._pids[index] = pid
        events.append(supervision.Event(index, message['event'], pid))
        continue
      self._pids.pop(index, None)
      events.append(self._exited(message))
    return events

  def _signal(self, index: int, number: int) -> None:
    self._zygote.send(op='signal', index=index, number=int(number))


def log_paths(
  nodes: Sequence[prepare.PreparedNode], directory: pathlib.Path
) -> list[pathlib.Path]:
  """The log of each node, in a directory that is made if there is none."""
  logs = directory / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  return [logs / f'{node.name.replace("/", "-")}.log' for node in nodes]
