"""Feeds sinks with the numbers of a run while it runs, or afterwards.

  murmuration sink runs/NAME --to=wandb,mlflow

A run started with --sink does this by itself, in a process that was started
before the launcher entered its private network. All that passes between the two
is the run's own files, so no sink can hold up or end a run, and an interrupted
one goes on where it was.
"""

from __future__ import annotations

import pathlib
import sys

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

import argparse
from collections.abc import Callable, Sequence
import contextlib
import fcntl
import logging
import os
import select
import subprocess
from typing import IO, Any

from murmuration.run_records import commands
from murmuration.run_records import jsonable
from murmuration.run_records import launcher
from murmuration.run_records import metrics
from murmuration.run_records import run_directory
from murmuration.run_records import run_log
from murmuration.run_records import sinks

_PERIOD_S = 1.0
_PATIENCE_S = 30.0  # for what a sink has to send after the end
_logger = logging.getLogger(__name__)


class Feed:
  """One sink, and how far it has read each file of rows."""

  def __init__(self, run: run_directory.RunDirectory, name: str):
    self.name = name
    self._run = run
    self._state = run.path / 'sinks' / f'{name}.json'
    kept: dict[str, Any] = {}
    if self._state.exists():
      kept = jsonable.read(self._state)
    self._read: dict[str, int] = kept.get('read', {})
    # A row that was taken, and whose numbers were not, is ahead of that.
    self._rows: dict[str, int] = {**self._read, **kept.get('rows', {})}
    self._kept: dict[str, Any] = kept.get('sink', {})
    self._sink = sinks.make(name, run, self._kept)

  def poll(self) -> None:
    """Hands over what is new."""
    try:
      for kind in self._run.kinds():
        self._hand_over(kind)
    finally:
      # Of what a sink took before it failed, nothing comes a second time.
      self._save()

  def _hand_over(self, kind: str) -> None:
    path = self._run.metrics_directory / f'{kind}.jsonl'
    for row, end in metrics.rows(path, self._read.get(kind, 0)):
      if end > self._rows.get(kind, 0):
        self._sink.row(kind, row)
        self._rows[kind] = end
      values, step = run_log.tagged(kind, row)
      if values:
        self._sink.scalars(values, step)
      self._read[kind] = end

  def close(self, goes_on: bool) -> None:
    summary = self._run.summary() or {}
    failed = summary.get('outcome') == 'failed'
    finished = bool(summary.get('finished')) and not failed
    self._sink.close(None if goes_on else finished)
    self._save()

  def _save(self) -> None:
    try:
      self._kept = self._sink.state()
    finally:
      state = {'read': self._read, 'rows': self._rows, 'sink': self._kept}
      jsonable.write(self._state, state)


def follow(
  run: run_directory.RunDirectory,
  names: Sequence[str],
  ended: Any,
  goes_on: Callable[[], bool] = lambda: False,
) -> bool:
  """Feeds the sinks until the run is over. Returns whether all took it all.

  A sink that raises is left out from then on, with its traceback in the log.
  One that another process feeds is waited for.

  Args:
    run: of which the directory is there.
    names: of sinks.
    ended: called with seconds to wait; returns whether no more rows come.
    goes_on: returns whether the run does, and sinks got what there is so far.
  """
  feeds: list[Feed] = []
  waiting = [*names]
  locks: dict[str, IO[str]] = {}
  well = True

  def guarded(name: str, call: Any) -> Any:
    nonlocal well
    try:
      return call()
    except Exception:
      _logger.exception('the sink %s gets no more of this run', name)
      well = False
      if name in waiting:
        waiting.remove(name)
      feeds[:] = [feed for feed in feeds if feed.name != name]
      if name in locks:
        locks.pop(name).close()
      return None

  def begin(name: str) -> None:
    lock = _lock(run, name)
    if lock is not None:
      locks[name] = lock
      waiting.remove(name)
      feeds.append(Feed(run, name))

  last = False
  while not last:
    last = ended(_PERIOD_S)
    for name in [*waiting]:
      guarded(name, lambda name=name: begin(name))
    for feed in [*feeds]:
      guarded(feed.name, feed.poll)
  live = goes_on() if feeds else False
  for feed in [*feeds]:
    guarded(feed.name, lambda feed=feed: feed.close(live))
    if feed.name in locks:
      locks.pop(feed.name).close()
  for name in waiting:
    _logger.error('the sink %s got nothing: another process feeds it', name)
  return well and not waiting


def _lock(run: run_directory.RunDirectory, name: str) -> IO[str] | None:
  """Keeps a sink of a run from other processes; None if one feeds it."""
  directory = run.path / 'sinks'
  directory.mkdir(exist_ok=True)
  lock = open(directory / f'{name}.lock', 'w')
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    lock.close()
    return None
  except OSError:
    pass  # the file system has no locks
  return lock


def _check_free(run: run_directory.RunDirectory, names: Sequence[str]) -> None:
  for name in names:
    lock = _lock(run, name)
    if lock is None:
      raise ValueError(
        f'the sink {name} of {run.path} is being fed by another process, '
        'mostly that of the run itself. Wait until that has ended, or name '
        'other sinks.'
      )
    lock.close()


class Follower:
  """The launcher's side: a process that follows its run."""

  def __init__(self, path: pathlib.Path, names: Sequence[str]):
    """Starts it. The run's directory need not be there yet."""
    self._names = ','.join(names)
    self._process = subprocess.Popen(
      [
        sys.executable,
        '-m',
        __name__,
        str(path.absolute()),
        f'--to={self._names}',
      ]
      # A user's own sink is found where this process found it.
      + ['--live', f'--path={os.pathsep.join(sys.path)}'],
      stdin=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C ends the run; this one ends after it
    )

  def close(self) -> None:
    """Says that the run is over, and waits a while for what is on its way."""
    assert self._process.stdin is not None
    # Closing it says nothing while a process that was forked meanwhile, such as
    # the zygote, has this end open too.
    with contextlib.suppress(OSError):  # the follower may have ended by itself
      os.write(self._process.stdin.fileno(), b'\n')
    self._process.stdin.close()
    try:
      code = self._process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
      print(
        f'note: {self._names} still being written, by process '
        f'{self._process.pid}.',
        file=sys.stderr,
      )
      return
    if code:
      print(
        f'warning: not all numbers are in {self._names}; sinks/log.txt in the '
        'run says why.',
        file=sys.stderr,
      )


def main() -> int:
  parser = commands.Parser(__doc__)
  parser.add_argument('run', metavar='RUN', help='directory of a run')
  parser.add_argument(
    '--to',
    required=True,
    help=f'with commas: {", ".join(sinks.NAMES)}, or module:Name of your own',
  )
  parser.add_argument('--live', action='store_true', help=argparse.SUPPRESS)
  parser.add_argument('--path', help=argparse.SUPPRESS)
  try:
    args = parser.parse(sys.argv[1:])
    # Behind the project's own packages.
    own = (args.path or commands.here()).split(os.pathsep)
    sys.path += [p for p in own if p not in sys.path]
    path = pathlib.Path(args.run)
    names = sinks.parse(args.to)
    if not names:
      parser.error('--to= names no sink')
    if args.live and not _appears(path):
      return 0
    first.raise_interrupts()
    run = run_directory.open(path)
    if not args.live:
      _check_free(run, names)
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  if not args.live:
    code = int(
      not follow(
        run, names, lambda seconds: True, lambda: launcher.running(path)
      )
    )
    print(run.path / 'sinks')
    return code
  (path / 'sinks').mkdir(exist_ok=True)
  log = open(path / 'sinks' / 'log.txt', 'a')
  os.dup2(log.fileno(), 1)  # what the packages print is not for the live view
  os.dup2(log.fileno(), 2)
  return int(not follow(run, names, _closed))


def _closed(seconds: float) -> bool:
  """Whether the launcher is gone, or says that the run is over."""
  return bool(select.select([0], [], [], seconds)[0])


def _appears(path: pathlib.Path) -> bool:
  """Waits for a run; False if the launcher ends without one."""
  ended = False
  while not (config := path / 'config.json').exists() and not ended:
    ended = _closed(0.1)
  return config.exists()


if __name__ == '__main__':
  logging.basicConfig(format='%(asctime)s %(message)s')
  sys.exit(main())
