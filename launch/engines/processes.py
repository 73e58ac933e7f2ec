"""local_mp: one process per node, forked from one process that imported all.

The program and its addresses are Launchpad's; the runner is not. Launchpad's
own takes a crashed node for a clean exit, cannot restart one, and leaves
orphans when it is killed.
"""

from collections.abc import Mapping, Sequence
import pathlib
import signal
from typing import Any

import launchpad as lp

from murmuration.launch import pulse
from murmuration.launch.engines import child
from murmuration.launch.engines import node_logs
from murmuration.launch.engines import prepare
from murmuration.launch.engines import restarts
from murmuration.launch.engines import scratch as scratch_lib
from murmuration.launch.engines import signals as signals_lib
from murmuration.launch.engines import state as state_lib
from murmuration.launch.engines import supervision
from murmuration.launch.engines import watch as watch_lib
from murmuration.launch.engines import zygote
from murmuration.launch.rpc import directory


def run(
  program: lp.Program,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: state_lib.OnTick | None = None,
) -> state_lib.Outcome:
  """Runs a program with one process per node; see engines.run."""
  with scratch_lib.Scratch() as scratch, signals_lib.Signals() as signals:
    addresses = directory.Local(scratch)
    nodes = prepare.prepare(program, addresses, signals.ask)
    paths = log_paths(nodes, run_dir or scratch)
    slots = pulse.Board(scratch, len(nodes)).slots
    watch = watch_lib.Watch(slots, restarts.of(program))
    kept = paths if run_dir else [None] * len(nodes)
    family = prepare.Family(
      nodes, paths, slots, addresses, scratch, top=scratch
    )
    with _Local(family) as backend:
      return supervision.Supervisor(
        backend, nodes, kept, signals, on_tick, watch
      ).run()


class Backend:
  """Nodes as processes of zygotes, wherever those are: a supervision.Backend.

  A subclass says how a zygote is reached.
  """

  kills = True

  def __init__(
    self, log_paths: Sequence[pathlib.Path], slots: Sequence[pulse.Slot]
  ):
    self._slots = slots
    self._logs = node_logs.Logs(log_paths)

  def _signal(self, index: int, number: int) -> None:
    """Sends a signal to a node's process."""
    raise NotImplementedError

  def stop(self, index: int) -> None:
    self._signal(index, signal.SIGTERM)

  def kill(self, index: int) -> str:
    # It writes its stacks to its log, and ends.
    self._signal(index, signal.SIGABRT)
    return ''

  def _exited(self, message: Mapping[str, Any]) -> supervision.Event:
    """Makes an event of a zygote's message."""
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
      index,
      'exited',
      pid,
      failed,
      error,
      killed and not oom,
      oom=oom,
      final=code == child.FINAL,
    )


class _Local(Backend):
  """The zygote is a child of this process."""

  def __init__(self, family: prepare.Family):
    super().__init__(family.logs, family.slots)
    self._family = family
    self._pids: dict[int, int] = {}  # index -> pid

  def __enter__(self) -> '_Local':
    self._zygote = zygote.Launcher(self._family)
    return self

  def __exit__(self, *unused) -> None:
    if not self._zygote.quit():
      # It was killed, and the nodes died with it. Kill their children.
      zygote.kill_remains(self._pids.values(), str(self._family.scratch))

  def start(self, index: int, again: int) -> None:
    self._logs.begins(index)
    self._zygote.channel.send(op='start', index=index, again=again, env={})

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    events = []
    while self._zygote.channel.wait([], timeout_s):
      timeout_s = 0.0
      message = self._zygote.channel.receive()
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
    self._zygote.channel.send(op='signal', index=index, number=int(number))


def log_paths(
  nodes: Sequence[prepare.PreparedNode], directory: pathlib.Path
) -> list[pathlib.Path]:
  """The log of each node, in a directory that is made if there is none."""
  logs = (directory / 'logs').absolute()
  logs.mkdir(parents=True, exist_ok=True)
  return [logs / f'{node.name.replace("/", "-")}.log' for node in nodes]
