"""What a node's process does between the fork and the exit."""

import atexit
from collections.abc import Callable, Mapping
import contextlib
import datetime
import faulthandler
import io
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading
from typing import Any, NoReturn

from absl import flags
from absl import logging
from launchpad.launch import worker_manager
import numpy as np

from launch import pulse
from launch.engines import linux
from launch.engines import prepare
from launch.rpc import directory
from launch.rpc import hosts

# On this signal a node writes the stack of every thread to its log.
DUMP_SIGNAL = signal.SIGUSR2
TERMINATED = 128 + signal.SIGTERM  # exit code of a node that was told to stop
_ENTRY_SCRIPT = os.path.join('nodes', 'python', 'process_entry.py')


def run(
  request: Mapping[str, Any],
  zygote_pid: int,
  notify_running: Callable[[], None],
) -> NoReturn:
  """Turns a fresh fork of the zygote into a node; ends the process.

  Args:
    request: 'name', 'command' (Launchpad's), 'env' (changes), 'cwd', 'path' (of
      modules), 'log' (file), 'names' (of its servers, to their kinds),
      'restarts', 'scratch' (directory for temporary files, and addresses),
      'pulse' (file with its signs of life) and 'index' (of those); 'cluster':
      whether the directory of addresses is that of the host's agent.
    zygote_pid: this process dies with that one.
    notify_running: called right before the node's own code.
  """
  exit_code = 1
  try:
    os.setpgid(0, 0)
    pulse.use(pulse.open_slot(request['pulse'], request['index']))
    linux.die_with_parent(zygote_pid)
    linux.adopt_orphans()  # while it lives; then the zygote kills them
    _redirect_output(request['log'])
    _reset_inherited_state()
    linux.set_title(f'murmuration: {request["name"]}')
    _print_header(request)
    # The zygote may be older than the run.
    _set_environment(request['env'])
    os.chdir(request['cwd'])
    sys.path[:] = request['path']
    if 'tensorflow' in sys.modules:  # a node that needs none imports none
      from replay import tensors  # only now is that one found, and no user's

      tensors.stop_leak()  # also on hosts where no launcher did
    # Files that a library leaves there are removed with the run.
    os.environ['TMPDIR'] = tempfile.tempdir = request['scratch']
    where = pathlib.Path(request['scratch'])
    cluster = request.get('cluster')
    run = hosts.Directory(where) if cluster else directory.Local(where)
    for name, kind in request['names'].items():
      run.claim(name, kind)
    _run_command(request['command'], notify_running)
    exit_code = 0
    if worker_manager.stop_event().is_set():
      # Its loop returned because it was told to. Only the launcher knows
      # whether that was its own word: a plain `kill` is no work that is done.
      exit_code = TERMINATED
      pulse.done(error='ended by a SIGTERM that the launcher did not send')
    else:
      pulse.done()
  except BaseException as e:  # also sys.exit(0): whose work is done returns
    # The launcher reads the end of the log for the traceback; with a disk that
    # is full there is none.
    error = prepare.format_error(e)
    pulse.done(error=error)
    print(error, end='', file=sys.stderr)
    if isinstance(e, SystemExit) and isinstance(e.code, int):
      exit_code = e.code or 1
  finally:
    with contextlib.suppress(BaseException):
      atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
      sys.stdout.flush()
      sys.stderr.flush()
    # No interpreter shutdown: libraries that were forked would run their
    # destructors on threads that are not there.
    os._exit(exit_code)


class _Log(io.TextIOWrapper):
  """What a node prints is lost on a full disk, and not the node with it."""

  def write(self, text: str) -> int:
    with contextlib.suppress(OSError):
      super().write(text)
    return len(text)

  def flush(self) -> None:
    with contextlib.suppress(OSError):
      super().flush()


def _redirect_output(log_path: str) -> None:
  try:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
  except OSError:
    # The run's directory is gone, or its disk full: both are said elsewhere.
    log = os.open(os.devnull, os.O_WRONLY)
  null = os.open(os.devnull, os.O_RDONLY)
  os.dup2(null, 0)
  os.dup2(log, 1)
  os.dup2(log, 2)
  os.close(log)
  os.close(null)
  for name, fd in (('stdout', 1), ('stderr', 2)):
    stream = _Log(
      os.fdopen(fd, 'wb', closefd=False),
      encoding='utf-8',
      errors='backslashreplace',
      line_buffering=True,
    )
    setattr(sys, name, stream)
    setattr(sys, f'__{name}__', stream)
  faulthandler.enable(file=2, all_threads=True)
  faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)


def _reset_inherited_state() -> None:
  """Forgets what belongs to the launcher."""
  signal.set_wakeup_fd(-1)
  for number in (
    signal.SIGTERM,
    signal.SIGCONT,
    signal.SIGCHLD,
    signal.SIGQUIT,
    prepare.STOP_SIGNAL,
  ):
    signal.signal(number, signal.SIG_DFL)
  # The launcher handles Ctrl-C and hang-ups, and then stops the nodes.
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  # Launchpad would remove its data files, which other nodes still need.
  atexit._clear()
  worker_manager._SIGNAL_HANDLERS = None
  worker_manager._HAS_MAIN_MANAGER = False
  worker_manager._WORKER_MANAGERS = threading.local()
  logging.use_absl_handler()
  logging.get_absl_handler().python_handler.stream = sys.stderr
  # Without this all nodes would draw the same "random" numbers.
  random.seed()
  np.random.seed()


def _set_environment(changes: Mapping[str, str | None]) -> None:
  for key, value in changes.items():
    if value is None:
      os.environ.pop(key, None)
    else:
      os.environ[key] = value


def _print_header(request: Mapping[str, Any]) -> None:
  now = datetime.datetime.now().isoformat(sep=' ', timespec='seconds')
  restarts = f', restart {request["restarts"]}' if request['restarts'] else ''
  place = f', on {socket.gethostname()}' if request.get('cluster') else ''
  print(f'--- {request["name"]}, pid {os.getpid()}, {now}{restarts}{place}')


def _run_command(
  command: list[str], notify_running: Callable[[], None]
) -> None:
  """Runs what Launchpad would have executed."""
  # With this flag a crashed node would wait for a debugger.
  command = [arg for arg in command if arg != '--pdb_post_mortem']
  assert command[1].endswith(_ENTRY_SCRIPT), command
  # Defines the flags that the command sets, so not before the fork.
  from launchpad.nodes.python import process_entry

  sys.argv = command[1:]
  flags.FLAGS.unparse_flags()
  process_entry._populate_flags()
  # Off: the launcher kills a node that does not stop.
  flags.FLAGS['lp_termination_notice_secs'].value = -1
  if flags.FLAGS['verbosity'].using_default_value:
    logging.set_verbosity(logging.INFO)
  notify_running()
  process_entry.main(sys.argv)
