"""local_mt: every node is a thread of this process; for debuggers and tests.

A node whose thread raises is restarted according to its policy. A thread cannot
be killed: one that does not stop is named in the outcome and left running.
"""

from collections.abc import Iterator, Sequence
import contextlib
import pathlib
import queue
import sys
import tempfile
import threading
import traceback
from typing import Any

import launchpad as lp

from murmuration.launch import pulse
from murmuration.launch.engines import prepare
from murmuration.launch.engines import restarts
from murmuration.launch.engines import scratch as scratch_lib
from murmuration.launch.engines import signals as signals_lib
from murmuration.launch.engines import state as state_lib
from murmuration.launch.engines import supervision
from murmuration.launch.engines import watch
from murmuration.launch.rpc import directory

_NO_HANDLER = 'ValueError: signal only works in main thread'
_HANDLER = (
  'it sets a signal handler, perhaps in its environment, and here it is a '
  'thread, which cannot: use --lp_launch_type=local_mp'
)


def run(
  program: lp.Program,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: state_lib.OnTick | None = None,
) -> state_lib.Outcome:
  """Runs a program with one thread per node; see engines.run."""
  del run_dir  # Threads share the output of the process.
  with (
    signals_lib.Signals() as signals,
    scratch_lib.Scratch() as scratch,
    _temporary_files_in(scratch),
  ):
    prepare.take_stop_handlers()
    addresses = directory.Local(scratch)
    nodes = prepare.prepare(program, addresses, signals.ask)
    slots = pulse.Board(scratch, len(nodes)).slots
    return supervision.Supervisor(
      _Backend(nodes, addresses, slots),
      nodes,
      [None] * len(nodes),
      signals,
      on_tick,
      watch.Watch(slots, restarts.of(program)),
    ).run()


class _Backend:
  """Nodes as threads; a supervision.Backend."""

  kills = False

  def __init__(
    self,
    nodes: list[prepare.PreparedNode],
    addresses: directory.Directory,
    slots: Sequence[pulse.Slot],
  ):
    self._nodes = nodes
    self._slots = slots
    self._addresses = addresses
    # Not a SimpleQueue: if handling a signal outlasts the timeout, its get()
    # waits for ever, and Ctrl-C no longer ends the run.
    self._events: queue.Queue[supervision.Event] = queue.Queue()
    self._threads: dict[int, threading.Thread] = {}
    self._managers: dict[int, prepare.Manager] = {}
    self._notified = False

  def start(self, index: int, again: int) -> None:
    node = self._nodes[index]
    manager = self._managers[index] = prepare.Manager()
    thread = self._threads[index] = threading.Thread(
      target=self._run,
      args=(index, node, manager),
      name=node.name,
      daemon=True,
    )
    thread.start()

  def stop(self, index: int) -> None:
    self._managers[index].stop_event().set()
    if not self._notified:
      self._notified = True
      # Handlers of lp.register_stop_handler() are common to all nodes.
      with contextlib.suppress(Exception):
        prepare.call_stop_handlers()

  def kill(self, index: int) -> str:
    frame = sys._current_frames().get(self._threads[index].ident or 0)
    stack = traceback.extract_stack(frame) if frame else []
    return '\n'.join(
      f'  File "{one.filename}", line {one.lineno} in {one.name}'
      for one in reversed(stack)
    )

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    events = []
    with contextlib.suppress(queue.Empty):
      events.append(self._events.get(timeout=timeout_s))
      while True:
        events.append(self._events.get_nowait())
    return events

  def _run(
    self, index: int, node: prepare.PreparedNode, manager: prepare.Manager
  ) -> None:
    manager.use()
    error, final = None, False
    try:
      pulse.use(self._slots[index])
      for name, kind in node.names.items():
        self._addresses.claim(name, kind)
      self._events.put(supervision.Event(index, 'running'))
      node.run()
    except BaseException as e:  # also sys.exit(0): a finished node returns
      error = prepare.format_error(e)
      final = getattr(e, 'no_restart_helps', False)
      if _NO_HANDLER in error:
        error, final = _HANDLER, True
      elif not manager.stop_event().is_set():
        state_lib.say(f'--- {node.name} died:\n{error}', error=True)
    finally:
      _release(node.node)
      self._events.put(
        supervision.Event(
          index, 'exited', failed=error is not None, error=error, final=final
        )
      )


def _release(node: Any) -> None:
  """Frees a node's port and clears state that would prevent a restart."""
  server: Any = getattr(node, '_server', None)
  if hasattr(server, 'stop'):  # Reverb's; Courier's are stopped by their nodes
    with contextlib.suppress(Exception):
      server.stop()
  for attribute in ('_server', '_instance'):
    if hasattr(node, attribute):
      setattr(node, attribute, None)


@contextlib.contextmanager
def _temporary_files_in(path: pathlib.Path) -> Iterator[None]:
  """Makes `tempfile` use `path`."""
  previous = tempfile.tempdir
  tempfile.tempdir = str(path)
  try:
    yield
  finally:
    tempfile.tempdir = previous
