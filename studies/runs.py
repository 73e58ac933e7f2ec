"""Makes the runs of a study, each in its own process; can be resumed.

A run exists once its record does, which is written when its process has ended.
What an interrupted run left is deleted, and the run is made again. What a
crashed run left stays: once a run has begun, a crash is a result. Runs that
were made with other flags are refused. So are runs whose flags would resolve to
another config today, because a preset or a default has changed.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
import concurrent.futures
import contextlib
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
from typing import Any

from murmuration.launch.engines import linux
from murmuration.launch.engines import state
from murmuration.run_records import jsonable
from murmuration.studies import plan as study_plan
from murmuration.studies import progress as study_progress

# Exit codes that say nothing about a system: usage errors and interruptions.
_NO_RESULT = (2, *state.BROKEN_OFF, -signal.SIGINT, -signal.SIGTERM)
_POLL_S = 0.2
_STOP_S = 30.0  # for a run to end by itself after SIGTERM
_RESOLVE_S = 300.0  # for a script to print its config, on a busy machine
# Settings that differ on purpose between the runs of a variant.
_OF_ONE_RUN = ('seed',)


class Refused(ValueError):
  """The runs cannot be made; the message says why and what to change."""


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


def missing(
  jobs: Sequence[study_plan.Job], retry_crashed: bool = False
) -> list[study_plan.Job]:
  """The jobs without a result; with `retry_crashed`, also those that crashed.

  Raises:
    Refused: an existing run was made with other flags, or with a config that
      its flags no longer resolve to; a script is not here, or refuses its
      flags.
  """
  found = []
  # By variant, also where it has none yet: its flags are to be looked at.
  kept: dict[str, list[study_plan.Job]] = {job.variant: [] for job in jobs}
  # The flags of a variant's runs differ only in the seed.
  first = {job.variant: job for job in reversed(jobs)}
  for job in jobs:
    if not job.record.exists():
      if not job.script.exists():
        raise Refused(
          f'{job.variant} runs {job.script.name}, which is not installed with '
          'the package. Make this study in a clone of the project.'
        )
      found.append(job)
      continue
    made = record(job)
    if made['command'] != command(job):
      raise Refused(
        f'{job.path} was made by `{made["command"]}`, and asked for is '
        f'`{command(job)}`. Remove it with {job.record.name}, or give '
        'another --out.'
      )
    if retry_crashed and made['exit_code']:
      found.append(job)
    else:
      kept[job.variant].append(job)
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    today = pool.map(resolve, first.values())
    for label, config in zip(first, today, strict=True):
      for job in kept[label]:
        _check_config(job, config)
  return found


def run_all(
  jobs: Sequence[study_plan.Job],
  parallel: int,
  progress: study_progress.Progress,
) -> None:
  """Runs jobs, `parallel` at a time, and writes their records.

  Raises:
    Refused: a run refused its flags, ended before it created its directory, or
      was stopped by a signal.
  """
  for job in jobs:
    job.record.unlink(missing_ok=True)
  waiting = collections.deque(jobs)
  running: dict[study_plan.Job, subprocess.Popen] = {}
  began: dict[study_plan.Job, tuple[float, str]] = {}
  try:
    while waiting or running:
      while waiting and len(running) < parallel:
        job = waiting.popleft()
        began[job] = time.time(), revision()
        running[job] = _start(job)
      time.sleep(_POLL_S)
      for job, process in list(running.items()):
        code = process.poll()
        if code is None:
          continue
        del running[job]
        if code in _NO_RESULT or not job.begun:
          raise Refused(
            f'{job.study}/{job.path.name} ended with exit code {code} and has '
            f'no result. The end of its log, {job.log}:\n{_tail(job.log)}'
          )
        began_s, code_then = began[job]
        took_s = time.time() - began_s
        jsonable.write(
          job.record,
          {
            'command': command(job),
            'config': digest(jsonable.read(job.path / 'config.json')),
            'exit_code': code,
            'began_unix_s': began_s,
            'process_s': took_s,
            'at_a_time': parallel,
            'code': revision(since=code_then),
            'machine': machine(),
          },
        )
        progress.ended(job, code, took_s)
  finally:
    _stop(running.values())


def record(job: study_plan.Job) -> dict[str, Any]:
  """How a job ended, and how it was made."""
  return jsonable.read(job.record)


def command(job: study_plan.Job) -> str:
  """The command that makes the run again, without its directory."""
  words = [job.script.name, *job.arguments]
  return ' '.join(f"'{w}'" if ' ' in w else w for w in words)


def resolve(job: study_plan.Job) -> dict[str, Any]:
  """The config that a job's command resolves to today.

  Raises:
    Refused: the script printed no config.
  """
  done = subprocess.run(
    [sys.executable, job.script, '--print-config', *job.arguments],
    capture_output=True,
    text=True,
    stdin=subprocess.DEVNULL,
    timeout=_RESOLVE_S,
  )
  try:
    done.check_returncode()
    return json.loads(done.stdout)
  except (subprocess.CalledProcessError, ValueError) as e:
    raise Refused(
      f'`{command(job)}` with --print-config ended with exit code '
      f'{done.returncode} and printed no config, so no run is made:\n'
      f'{(done.stdout + done.stderr)[-2000:]}'
    ) from e


def digest(config: dict[str, Any]) -> str:
  """A hash of a run's config that all seeds of a variant share."""
  kept = {k: v for k, v in config.items() if k not in _OF_ONE_RUN}
  text = json.dumps(kept, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.lru_cache
def machine() -> str:
  """Cores and processor model, which any times depend on."""
  model = 'unknown processor'
  for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
    if line.startswith('model name'):
      model = line.partition(':')[2].strip()
      break
  return f'{os.cpu_count()} cores, {model}'


def revision(since: str = '') -> str:
  """The current commit, with '+' if files that affect runs differ from it.

  If `since`, the revision at the start of something, is another, the result
  names both: either may have been run.
  """
  root = pathlib.Path(__file__).resolve().parents[1]
  said = []
  # The tables and plots that studies write do not affect runs.
  changed = ['status', '--porcelain', '-uno', '--', '.', ':!docs', ':!*.md']
  for words in (['rev-parse', '--short', 'HEAD'], changed):
    try:
      done = subprocess.run(
        ['git', *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
      )
    except (OSError, subprocess.CalledProcessError):
      return 'unknown'
    said.append(done.stdout.strip())
  now = said[0] + ('+' if said[1] else '')
  return now if since in ('', now) else f'{since} to {now}'


def _check_config(job: study_plan.Job, today: dict[str, Any]) -> None:
  path = job.path / 'config.json'
  then = jsonable.read(path) if path.exists() else {}
  # Older records hold no hash; the run's own config is hashed instead.
  if record(job).get('config', digest(then)) == digest(today):
    return
  old, new = dict(jsonable.flat(then)), dict(jsonable.flat(today))
  changed = [
    f'{name} was {old.get(name, "not there")} and is '
    f'{new.get(name, "not there")}'
    for name in sorted({*old, *new} - set(_OF_ONE_RUN))
    if old.get(name) != new.get(name) or (name in old) != (name in new)
  ]
  more = f', and {len(changed) - 3} more' if len(changed) > 3 else ''
  raise Refused(
    f'{job.path} was made before the settings of `{command(job)}` changed: '
    f'{"; ".join(changed[:3])}{more}. Runs of two configs are not one system: '
    f'remove the runs of {job.variant!r} with their records, or give another '
    '--out.'
  )


def _start(job: study_plan.Job) -> subprocess.Popen:
  resumes = job.resumes and job.begun
  if job.path.exists() and not resumes:
    shutil.rmtree(job.path)
  job.path.parent.mkdir(parents=True, exist_ok=True)
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


def _stop(processes) -> None:
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
