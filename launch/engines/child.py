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
import sys
import tempfile
import threading
from typing import Any, NoReturn

from absl import flags
from absl import logging
import numpy as np

from murmuration.launch import pulse
from murmuration.launch.engines import linux
from murmuration.launch.engines import prepare

TERMINATED = 128 + signal.SIGTERM  # exit code of a node that was told to stop
FINAL = 70  # exit code of one whose error has a true `no_restart_helps`


def run(
  family: prepare.Family,
  index: int,
  again: int,
  env: Mapping[str, str],
  zygote_pid: int,
  notify_running: Callable[[], None],
) -> NoReturn:
  """Turns a fresh fork of the zygote into a node; ends the process.

  Args:
    family: the nodes of the program.
    index: which of them this is.
    again: how often it was started before.
    env: environment variables of this node alone.
    zygote_pid: this process dies with that one.
    notify_running: called right before the node's own code.
  """
  node = family.nodes[index]
  exit_code = 1
  try:
    os.setpgid(0, 0)
    pulse.use(family.slots[index])
    linux.die_with_parent(zygote_pid)
    linux.adopt_orphans()  # while it lives; then the zygote kills them
    _redirect_output(family.logs[index])
    _reset_inherited_state()
    linux.set_title(f'murmuration: {node.name}')
    now = datetime.datetime.now().isoformat(sep=' ', timespec='seconds')
    restart = f', restart {again}' if again else ''
    print(f'--- {node.name}, pid {os.getpid()}, {now}{restart}{family.place}')
    os.environ.update(env)
    # Files that a library leaves there are removed with the run.
    os.environ['TMPDIR'] = tempfile.tempdir = str(family.scratch)
    for name, kind in node.names.items():
      family.directory.claim(name, kind)
    stop = _stop_at_sigterm()
    notify_running()
    node.run()
    exit_code = 0
    if stop.is_set():
      # It was asked to stop. Only the launcher knows whether it did that
      # itself; after a plain `kill` the node's work is not done.
      exit_code = TERMINATED
      pulse.done(error='ended by a SIGTERM that the launcher did not send')
    else:
      pulse.done()
  except BaseException as e:  # also sys.exit(0): a node that is done returns
    # The launcher reads the traceback from the log; on a full disk there is
    # none.
    error = prepare.format_error(e)
    pulse.done(error=error)
    print(error, end='', file=sys.stderr)
    if isinstance(e, SystemExit) and isinstance(e.code, int):
      exit_code = e.code or 1
    elif getattr(e, 'no_restart_helps', False):
      exit_code = FINAL
  finally:
    with contextlib.suppress(BaseException):
      atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
      sys.stdout.flush()
      sys.stderr.flush()
    # No interpreter shutdown: libraries that were forked would run their
    # destructors on threads that are not there.
    os._exit(exit_code)


def _stop_at_sigterm() -> threading.Event:
  """Makes SIGTERM set the returned event, which lp.stop_event() gives too."""
  prepare.take_stop_handlers()
  manager = prepare.Manager()
  manager.use()

  def take(*unused: Any) -> None:
    try:
      prepare.call_stop_handlers()
    finally:
      manager.stop_event().set()

  signal.signal(signal.SIGTERM, take)
  return manager.stop_event()


class _Log(io.TextIOWrapper):
  """Drops what cannot be written, as on a full disk, instead of raising."""

  def write(self, text: str) -> int:
    with contextlib.suppress(OSError):
      super().write(text)
    return len(text)

  def flush(self) -> None:
    with contextlib.suppress(OSError):
      super().flush()


def _redirect_output(path: pathlib.Path) -> None:
  try:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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
  # On SIGABRT too: so the launcher ends a node that hangs.
  faulthandler.enable(file=2, all_threads=True)


def _reset_inherited_state() -> None:
  """Drops state that belongs to the launcher."""
  signal.set_wakeup_fd(-1)
  for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
  # Ctrl-C is for the launcher. Not ignored, or what a node starts would ignore
  # it too.
  signal.signal(signal.SIGINT, lambda *unused: None)
  atexit._clear()
  logging.use_absl_handler()
  logging.get_absl_handler().python_handler.stream = sys.stderr
  if flags.FLAGS['verbosity'].using_default_value:
    logging.set_verbosity(logging.INFO)
  # Without this all nodes would draw the same "random" numbers.
  random.seed()
  np.random.seed()
