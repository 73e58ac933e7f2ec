"""local_mp: one process per node, forked from one process that imported all.

The program, its addresses and its serialization are Launchpad's; the runner is
not. Launchpad's own takes a crashed node for a clean exit, cannot restart one,
and leaves orphans when it is killed.
"""

from collections.abc import Iterable, Sequence
import contextlib
import functools
import importlib
import os
import pathlib
import select
import shutil
import signal
import sys
import tempfile
import time

import launchpad as lp
import psutil

from launch import pulse
from launch.engines import child
from launch.engines import prepare
from launch.engines import restarts
from launch.engines import signals as signals_lib
from launch.engines import state as state_lib
from launch.engines import supervision
from launch.engines import watch as watch_lib
from launch.engines import zygote
from launch.rpc import directory

STACK = (
  'numpy',
  'gymnasium',
  'launchpad',
  'tensorflow',
  'sonnet',
  'reverb',
)
_ERROR_LINES = 40
_LAST_LINES = 5
_DUMP_S = 0.5  # for a node to write its stacks, at most
_LEFT = (
  'it left with exit code 0 in the middle of its work: something in it called '
  'os._exit(0), perhaps its environment. A node whose work is done returns.'
)


def warm_up(modules: Iterable[str] = STACK) -> None:
  """Imports the stack once, for all nodes; shows progress on stderr."""
  # gRPC must not look for threads of its own at a fork: there are none yet.
  os.environ.setdefault('GRPC_ENABLE_FORK_SUPPORT', '0')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
  missing = [name for name in modules if name not in sys.modules]
  if not missing:
    return
  start = time.monotonic()
  for name in missing:
    print(f'importing {name} ...', end=' ', flush=True, file=sys.stderr)
    importlib.import_module(name)
  print(f'done in {time.monotonic() - start:.1f} s', file=sys.stderr)


def run(
  program: lp.Program,
  *,
  run_dir: pathlib.Path | None = None,
  on_tick: state_lib.OnTick | None = None,
  tick_s: float = 0.2,
) -> state_lib.Outcome:
  """Runs a program with one process per node; see engines.run."""
  scratch = pathlib.Path(tempfile.mkdtemp(prefix='murmuration-'))
  try:
    with signals_lib.Signals() as signals:
      with _launchpad_files_in(scratch):
        nodes = prepare.prepare(
          program,
          lp.LaunchType.LOCAL_MULTI_PROCESSING,
          directory.Local(scratch),
          functools.partial(prepare.ask_to_stop, os.getpid()),
        )
      logs = (run_dir or scratch) / 'logs'
      logs.mkdir(parents=True, exist_ok=True)
      paths = [logs / f'{n.name.replace("/", "-")}.log' for n in nodes]
      board = pulse.Board(scratch, len(nodes))
      watch = watch_lib.Watch(board.slots, restarts.limits_of(program))
      with _Backend(nodes, paths, scratch, watch) as backend:
        outcome = supervision.Supervisor(
          backend, nodes, paths, signals, on_tick, tick_s, watch
        ).run()
    if run_dir is None:
      for state in outcome.nodes:
        state.log_path = None
    return outcome
  finally:
    shutil.rmtree(scratch, ignore_errors=True)


class _Backend:
  """Nodes as processes; a supervision.Backend."""

  kills = True

  def __init__(
    self,
    nodes: list[prepare.PreparedNode],
    log_paths: list[pathlib.Path],
    scratch: pathlib.Path,
    watch: watch_lib.Watch,
  ):
    self._nodes = nodes
    self._watch = watch
    self._log_paths = log_paths
    self._scratch = scratch
    self._log_starts = [0] * len(nodes)
    self._pids: dict[int, int] = {}  # index -> pid

  def __enter__(self) -> '_Backend':
    self._zygote = zygote.get()
    self._zygote.send(op='begin', scratch=str(self._scratch))
    return self

  def __exit__(self, *unused) -> None:
    self._zygote.end_run()
    if not self._zygote.alive():
      # It was killed, and the nodes died with it. Kill their children.
      for pid in self._pids.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
          os.killpg(pid, signal.SIGKILL)
      for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
          if process.environ().get('TMPDIR') == str(self._scratch):
            process.kill()

  def start(self, index: int, again: int) -> None:
    node = self._nodes[index]
    with contextlib.suppress(FileNotFoundError):
      self._log_starts[index] = self._log_paths[index].stat().st_size
    self._zygote.send(
      op='start',
      index=index,
      name=node.name,
      command=node.executable.command_as_list,
      env=self._zygote.changed_environment(node.executable.env_overrides),
      log=str(self._log_paths[index]),
      names=node.names,
      restarts=again,
      cwd=os.getcwd(),
      path=sys.path,
      scratch=str(self._scratch),
      pulse=str(self._scratch / pulse.FILE),
    )

  def stop(self, index: int) -> None:
    self._signal(index, signal.SIGTERM)
    # Somebody may have stopped it: then it hears nothing until it goes on.
    self._signal(index, signal.SIGCONT)

  def kill(self, indices: Sequence[int]) -> list[str]:
    if not indices:
      return []
    paths = [self._log_paths[index] for index in indices]
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
    for index in indices:
      self._signal(index, child.DUMP_SIGNAL)
    _wait_until_written(paths, sizes)
    for index in indices:
      self._signal(index, signal.SIGKILL)
    return [
      '\n'.join(_log_since(path, size)[-_ERROR_LINES:])
      for path, size in zip(paths, sizes, strict=True)
    ]

  def resume(self, index: int) -> None:
    self._signal(index, signal.SIGCONT)

  def poll(self, timeout_s: float) -> list[supervision.Event]:
    events = []
    self._zygote.wake()
    while select.select([self._zygote.channel], [], [], timeout_s)[0]:
      timeout_s = 0.0
      message = zygote.receive(self._zygote.channel)
      if message is None:
        raise supervision.BackendLost(
          'the process that starts the nodes was killed (out of memory? see '
          '`dmesg`); start the run again'
        )
      index, pid = message['index'], message['pid']
      if message['event'] != 'exited':
        self._pids[index] = pid
        events.append(supervision.Event(index, message['event'], pid))
        continue
      self._pids.pop(index, None)
      code = message['code']
      failed = bool(code) or not self._watch.done(index)
      events.append(
        supervision.Event(
          index,
          'exited',
          pid,
          failed,
          self._error(index, code) if failed else None,
          killed=code == -signal.SIGKILL,
        )
      )
    return events

  def _signal(self, index: int, number: int) -> None:
    self._zygote.send(op='signal', index=index, number=int(number))

  def _error(self, index: int, code: int) -> str:
    lines = _log_since(self._log_paths[index], self._log_starts[index])
    lines = [line for line in lines if not line.startswith('--- ')]
    if code == 0:
      return _LEFT
    if code > 0:
      return (
        _last(lines, 'Traceback (most recent call last)')
        or self._watch.last_words(index)
        or '\n'.join([*lines[-_LAST_LINES:], f'exit code {code}'])
      )
    name = signal.Signals(-code).name
    hint = ' (out of memory? see `dmesg`)' if name == 'SIGKILL' else ''
    where = _last(lines, 'Fatal Python error')
    return f'{where}\nkilled by {name}{hint}'.lstrip()


def _wait_until_written(
  paths: Sequence[pathlib.Path], sizes: Sequence[int]
) -> None:
  """Until each file has grown and grows no more, or for `_DUMP_S`."""
  until, before = time.monotonic() + _DUMP_S, list(sizes)
  while time.monotonic() < until:
    time.sleep(_DUMP_S / 10)
    now = [path.stat().st_size if path.exists() else 0 for path in paths]
    if now == before and all(a > b for a, b in zip(now, sizes, strict=True)):
      return
    before = now


def _log_since(path: pathlib.Path, start: int) -> list[str]:
  """The lines of a log from some place on, the last 64 kB of them."""
  try:
    with path.open('rb') as log:
      log.seek(max(start, path.stat().st_size - (1 << 16)))
      return log.read().decode(errors='replace').splitlines()
  except OSError:
    return []


def _last(lines: list[str], mark: str) -> str:
  """The lines from the last mark on; without the middle if they are many."""
  for i in range(len(lines) - 1, -1, -1):
    if lines[i].startswith(mark):
      lines = lines[i:]
      if len(lines) > _ERROR_LINES:
        lines = [lines[0], '  ...', *lines[2 - _ERROR_LINES :]]
      return '\n'.join(lines)
  return ''


@contextlib.contextmanager
def _launchpad_files_in(scratch: pathlib.Path):
  """Has Launchpad write its pickled nodes there, to be removed with the run."""
  previous = tempfile.tempdir
  tempfile.tempdir = str(scratch)
  try:
    yield
  finally:
    tempfile.tempdir = previous
