"""Makes the runs of a study, each in its own process; can be resumed.

A run exists once its record does, which is written when its process has ended.
What an interrupted run left is deleted, and the run is made again. What a
crashed run left stays: once a run has begun, a crash is a result. Runs that
were made with other flags are refused. So are runs whose flags would resolve to
another config today, because a preset or a default has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import functools
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from murmuration import jobs as jobs_lib
from murmuration.run_records import jsonable
from murmuration.studies import plan as study_plan

_RESOLVE_S = 300.0  # for a script to print its config, on a busy machine


class Progress:
  """A line for each run that ends, with the time left by the steps so far."""

  def __init__(
    self, missing: Sequence[study_plan.Job], parallel: Mapping[str, int]
  ):
    """`parallel` has numbers of concurrent runs by the name of the study."""
    self._parallel = parallel
    self._left = set(missing)
    self._total = len(missing)
    self._seconds = self._steps = 0.0

  def ended(self, job: study_plan.Job, code: int, took_s: float) -> None:
    self._left.remove(job)
    self._seconds += took_s
    self._steps += job.budget * len(job.seeds)
    left_s = sum(
      self._seconds / self._steps * other.budget * len(other.seeds)
      / self._parallel[other.study]
      for other in self._left
    )  # fmt: skip
    said = f'crashed with exit code {code}, see {job.log}' if code else 'done'
    print(
      f'[{self._total - len(self._left)}/{self._total}] '
      f'{job.study}/{job.path.name}: {said} after {_time(took_s)}, about '
      f'{_time(left_s)} left',
      flush=True,
    )


def _time(seconds: float) -> str:
  if seconds < 6000:
    return f'{seconds:.0f} s' if seconds < 100 else f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'


def missing(
  jobs: Sequence[study_plan.Job], retry_crashed: bool = False
) -> list[study_plan.Job]:
  """The jobs without a result; with `retry_crashed`, also those that crashed.

  Raises:
    Refused: an existing run was made with other flags, or with a config that
      its flags no longer resolve to, or a script refuses its flags.
  """
  found = []
  # The flags of a variant's runs differ only in the seed.
  first = {job.variant: job for job in reversed(jobs)}
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    resolved = pool.map(resolve, first.values())
    today = dict(zip(first, resolved, strict=True))
  for job in jobs:
    if not job.record.exists():
      found.append(job)
      continue
    made = record(job)
    if made['command'] != command(job):
      raise jobs_lib.Refused(
        f'{job.path} was made by `{made["command"]}`, and asked for is '
        f'`{command(job)}`. Remove it with {job.record.name}, or give '
        'another --out.'
      )
    if retry_crashed and made['exit_code']:
      found.append(job)
    else:
      _check_config(job, today[job.variant])
  return found


def run_all(
  jobs: Sequence[study_plan.Job],
  parallel: int,
  progress: Progress,
) -> None:
  """Runs jobs, `parallel` at a time, and writes their records.

  Raises:
    Refused: a run refused its flags, ended before it created its directory, or
      was stopped by a signal.
  """
  began: dict[study_plan.Job, tuple[float, str]] = {}

  def begun() -> Iterator[study_plan.Job]:
    for job in jobs:
      began[job] = time.time(), revision()
      yield job

  def ended(job: study_plan.Job, code: int) -> None:
    began_s, code_then = began[job]
    took_s = time.time() - began_s
    jsonable.write(
      job.record,
      {
        'command': command(job),
        'config': jobs_lib.digest(jsonable.read(job.path / 'config.json')),
        'exit_code': code,
        'began_unix_s': began_s,
        'process_s': took_s,
        'at_a_time': parallel,
        'code': revision(since=code_then),
        'machine': machine(),
      },
    )
    progress.ended(job, code, took_s)

  jobs_lib.run(begun(), parallel, ended)


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
    raise jobs_lib.Refused(
      f'`{command(job)}` with --print-config ended with exit code '
      f'{done.returncode} and printed no config, so no run is made:\n'
      f'{(done.stdout + done.stderr)[-2000:]}'
    ) from e


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
  if record(job).get('config', jobs_lib.digest(then)) == jobs_lib.digest(today):
    return
  old, new = dict(jsonable.flat(then)), dict(jsonable.flat(today))
  none = 'not there'
  changed = [
    f'{name} was {old.get(name, none)} and is {new.get(name, none)}'
    for name in sorted({*old, *new} - {'seed'})
    if old.get(name, none) != new.get(name, none)
  ]
  more = f', and {len(changed) - 3} more' if len(changed) > 3 else ''
  raise jobs_lib.Refused(
    f'{job.path} was made before the settings of `{command(job)}` changed: '
    f'{"; ".join(changed[:3])}{more}. Runs of two configs are not one system: '
    f'remove the runs of {job.variant!r} with their records, or give another '
    '--out.'
  )
