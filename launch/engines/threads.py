"""local_mt: every node is a thread of this process; for debuggers and tests.

A node whose thread raises is restarted according to its policy. A thread cannot
be killed: one that does not stop is named in the outcome and left running.
"""

from collections.abc import Iterator, Sequence
import contextlib
import pathlib
import queue
import signal
import sys
import tempfile
import threading
import traceback
from typing import Any

import launchpad as lp
from launchpad.launch import worker_manager

from murmuration.launch import pulse
from murmuration.launch.engines import output
from murmuration.launch.engines import prepare
from murmuration.launch.engines import restarts
from murmuration.launch.engines import scratch as scratch_lib
from murmuration.launch.engines import signals as signals_lib
from murmuration.launch.engines import state as state_lib
from murmuration.launch.engines import supervision
from murmuration.launch.engines import watch
from murmuration.launch.rpc import directory

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
    _stop_handlers(),
    scratch_lib.Scratch() as scratch,
    _temporary_files_in(scratch),
  ):
    addresses = directory.Local(scratch)
    # Launchpad's own lp.stop() would send a signal to the whole process.
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


class _Manager(worker_manager.WorkerManager):
  """The worker manager of one node, for lp.wait_for_stop(); ignores signals."""

  def _stop(self) -> None:
    self._stop_counter += 1
    self._stop_event.set()

  def _kill(self) -> None:
    pass

  _disable_signals = _disable_alarm = _kill


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
    self._managers: dict[int, _Manager] = {}
    self._notified = False

  def start(self, index: int, again: int) -> None:
    node = self._nodes[index]
    manager = self._managers[index] = _Manager()
    thread = self._threads[index] = threading.Thread(
      target=self._run,
      args=(index, node, manager),
      name=node.name,
      daemon=True,
    )
    thread.start()

  def stop(self, index: int) -> None:
    self._managers[index]._stop()
    if not self._notified:
      self._notified = True
      # Handlers of lp.register_stop_handler() are common to all nodes.
      with contextlib.suppress(Exception):
        worker_manager._signal_dispatcher(signal.SIGUSR1)

  def kill(self, index: int) -> str:
    frame = sys._current_frames().get(self._threads[index].ident or 0)
    return ''.join(traceback.format_stack(frame)) if frame else ''

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    events = []
    with contextlib.suppress(queue.Empty):
      events.append(self._events.get(timeout=timeout_s))
      while True:
        events.append(self._events.get_nowait())
    return events

  def _run(
    self, index: int, node: prepare.PreparedNode, manager: _Manager
  ) -> None:
    worker_manager._WORKER_MANAGERS.manager = manager
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
      if _needs_a_process(e):
        error, final = _HANDLER, True
      elif not manager.stop_event().is_set():
        output.warn(f'--- {node.name} died:\n{error}', end='')
    finally:
      _release(node.node)
      self._events.put(
        supervision.Event(
          index, 'exited', failed=error is not None, error=error, final=final
        )
      )


def _needs_a_process(error: BaseException | None) -> bool:
  """Whether an error, or what caused it, is Python's refusal of a handler."""
  while error is not None:
    if isinstance(error, ValueError) and str(error).startswith(
      'signal only works in main thread'
    ):
      return True
    error = error.__cause__ or error.__context__
  return False


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


@contextlib.contextmanager
def _stop_handlers() -> Iterator[None]:
  """Gives Launchpad its table of stop handlers, without signal handling."""
  previous = worker_manager._SIGNAL_HANDLERS
  # All that a manager asks for when it is made.
  taken = ('TERM', 'QUIT', 'INT', 'ALRM', 'USR1')
  worker_manager._SIGNAL_HANDLERS = {
    getattr(signal, f'SIG{name}'): set() for name in taken
  }
  try:
    yield
  finally:
    worker_manager._SIGNAL_HANDLERS = previous
