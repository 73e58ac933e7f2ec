"""Makes runs, each in a process of its own; for sweeps and studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, TypeVar

from murmuration.launch import session
from murmuration.launch.engines import linux
from murmuration.run_records import commands

RUN = session.root() / 'launch' / 'run.py'
# Exit codes that say nothing about a system: usage errors and interruptions.
_NO_RESULT = (2, *commands.BROKEN_OFF, -signal.SIGINT, -signal.SIGTERM)
POLL_S = 0.2
_STOP_S = 30.0  # for a run to end by itself after SIGTERM


class Refused(ValueError):
  """The runs cannot be made; the message says why and what to change."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """One process that makes a run.

  Attributes:
    path: run directory.
    script: a Python file that takes the flags of launch/run.py.
    arguments: of the script, without the run directory.
    resumes: whether to resume what is in the directory, or to delete it.
  """

  path: pathlib.Path
  script: pathlib.Path = RUN
  arguments: tuple[str, ...]
  resumes: bool = False

  @property
  def log(self) -> pathlib.Path:
    return self.path.with_name(f'{self.path.name}.log')

  @property
  def begun(self) -> bool:
    """Whether the program got as far as its run directory."""
    return (self.path / 'config.json').is_file()

  @property
  def record(self) -> pathlib.Path:
    """File that says how the process ended; absent until it has."""
    return self.path.with_name(f'{self.path.name}.json')


AnyJob = TypeVar('AnyJob', bound=Job)


def run(
  jobs: Iterable[AnyJob],
  parallel: int,
  ended: Callable[[AnyJob, int], None],
  unwanted: Callable[[AnyJob], bool] = lambda job: False,
) -> None:
  """Runs jobs, `parallel` at a time.

  Args:
    jobs: each is taken when there is a free place for it.
    parallel: number of concurrent runs.
    ended: called with each job that ended and its exit code.
    unwanted: called with running jobs again and again; True stops the job,
      which then does not count as ended.

  Raises:
    Refused: a run refused its flags, ended before it created its directory, or
      was stopped by a signal.
  """
  waiting = iter(jobs)
  running: dict[AnyJob, subprocess.Popen] = {}
  try:
    while True:
      while len(running) < parallel and (job := next(waiting, None)):
        running[job] = _start(job)
      if not running:
        return
      time.sleep(POLL_S)
      for job, process in list(running.items()):
        code = process.poll()
        if code is None:
          if unwanted(job):
            _stop([running.pop(job)])
          continue
        del running[job]
        if code in _NO_RESULT or not job.begun:
          raise Refused(
            f'{job.path} ended with exit code {code} and has no result. The '
            f'end of its log, {job.log}:\n{_tail(job.log)}'
          )
        ended(job, code)
  finally:
    _stop(running.values())


@contextlib.contextmanager
def alone(directories: Iterable[pathlib.Path]) -> Iterator[None]:
  """Keeps other processes of this host from making runs in `directories`.

  They would mistake a run in progress for an interrupted one. Directories are
  created if missing.

  Raises:
    Refused: another process makes runs there.
  """
  with contextlib.ExitStack() as held:
    for directory in directories:
      directory.mkdir(parents=True, exist_ok=True)
      opened = os.open(directory, os.O_RDONLY)
      held.callback(os.close, opened)  # releases the lock
      try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise Refused(
          f'another process is making runs in {directory}. Wait until it has '
          'ended, or give another directory.'
        ) from None
      except OSError:
        pass  # the file system has no locks
    yield


def digest(config: dict[str, Any]) -> str:
  """A hash of a run's config that does not depend on its seed."""
  kept = {name: value for name, value in config.items() if name != 'seed'}
  text = json.dumps(kept, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def interrupt_on_signals() -> None:
  """Has SIGHUP and SIGTERM interrupt this process as Ctrl-C does."""
  for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, signal.default_int_handler)


def _start(job: Job) -> subprocess.Popen:
  resumes = job.resumes and job.begun
  if job.path.exists() and not resumes:
    shutil.rmtree(job.path)
  job.path.parent.mkdir(parents=True, exist_ok=True)
  job.record.unlink(missing_ok=True)
  where = 'resume' if resumes else 'run_dir'
  with open(job.log, 'a' if resumes else 'w', encoding='utf-8') as file:
    return subprocess.Popen(
      [sys.executable, job.script, f'--{where}={job.path}', *job.arguments],
      stdout=file,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      # Ctrl-C reaches only this process, which forwards it once, as SIGTERM:
      # what a shell started in the background ignores SIGINT.
      start_new_session=True,
      preexec_fn=functools.partial(
        linux.die_with_parent, os.getpid(), signal.SIGTERM
      ),
    )


def _stop(processes: Iterable[subprocess.Popen]) -> None:
  processes = list(processes)
  for process in processes:
    if process.poll() is None:
      process.send_signal(signal.SIGTERM)
  deadline = time.monotonic() + _STOP_S
  for process in processes:
    try:
      process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()


def _tail(path: pathlib.Path) -> str:
  return path.read_text(encoding='utf-8', errors='replace')[-2000:].strip()
