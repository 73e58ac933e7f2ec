"""Feeds sinks with the numbers of a run.

  murmuration sink runs/NAME --to=wandb,mlflow

takes a run that has ended. A run with --sink feeds its own while it goes on, by
one process for each: a thread could not, as the launcher forks its nodes, which
would get the locks and half-made modules of what it imports; and the launcher
enters a private network, from which nothing reaches a server.
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
import logging
import os
import select
import subprocess
import time

from murmuration.run_records import commands
from murmuration.run_records import jsonable
from murmuration.run_records import launcher
from murmuration.run_records import metrics
from murmuration.run_records import run_directory
from murmuration.run_records import sinks

_PERIOD_S = 1.0
_PATIENCE_S = 30.0  # for what a sink has to send after the end
_logger = logging.getLogger(__name__)


def feed(
  run: run_directory.RunDirectory, name: str, ended: Callable[[float], bool]
) -> None:
  """Feeds a sink until the run is over.

  How far it got is kept beside it: a later call goes on there.

  Args:
    run: of which the directory is there.
    name: of the sink.
    ended: called with seconds to wait; returns whether no more rows come.
  """
  path = run.path / 'sinks' / f'{name}.json'
  path.parent.mkdir(exist_ok=True)
  kept = jsonable.read(path) if path.exists() else {}
  read: dict[str, int] = kept.get('read', {})  # bytes of each file
  sink = sinks.make(name, run, kept.get('sink', {}))
  last = False
  while not last:
    last = ended(_PERIOD_S)
    try:
      for kind in run.kinds():
        rows = metrics.rows(
          run.metrics_directory / f'{kind}.jsonl', read.get(kind, 0)
        )
        for row, end in rows:
          sink.row(kind, row)
          values, step = metrics.tagged(kind, row)
          if values:
            sink.scalars(values, step)
          read[kind] = end
    finally:
      jsonable.write(path, {'read': read, 'sink': sink.state()})
  summary = run.summary() or {}
  failed = summary.get('outcome') == 'failed'
  sink.close(bool(summary.get('finished')) and not failed)


class Follower:
  """The launcher's side: a process for each sink of its run."""

  def __init__(self, path: pathlib.Path, names: Sequence[str]):
    """Starts them. The run's directory need not be there yet."""
    command = [sys.executable, '-m', __name__, str(path.absolute()), '--live']
    self._processes = {
      name: subprocess.Popen(
        [*command, f'--to={name}'],
        stdin=subprocess.PIPE,
        # A user's own sink is found where this process found it.
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        start_new_session=True,  # Ctrl-C ends the run; these end after it
      )
      for name in names
    }

  def close(self) -> None:
    """Says that the run is over, and waits a while for what is on its way."""
    for process in self._processes.values():
      assert process.stdin is not None
      # Closing it says nothing while a process that was forked meanwhile, such
      # as a node, has this end open too.
      with contextlib.suppress(OSError):  # it may have ended by itself
        os.write(process.stdin.fileno(), b'\n')
      process.stdin.close()
    until = time.monotonic() + _PATIENCE_S
    for name, process in self._processes.items():
      said = ''
      try:
        if process.wait(max(0.0, until - time.monotonic())):
          said = f'not all numbers are in {name}: see sinks/log.txt in the run'
      except subprocess.TimeoutExpired:
        said = f'{name} is still being written, by process {process.pid}'
      if said:
        print(f'warning: {said}.', file=sys.stderr)


def main() -> int:
  parser = commands.Parser(__doc__)
  parser.add_argument('run', metavar='RUN', help='directory of a run')
  parser.add_argument(
    '--to',
    required=True,
    help=f'with commas: {", ".join(sinks.NAMES)}, or module:Name of your own',
  )
  parser.add_argument('--live', action='store_true', help=argparse.SUPPRESS)
  try:
    args = parser.parse(sys.argv[1:])
    sys.path.append(commands.here())  # for a sink of the user's own
    names, path = sinks.parse(args.to), pathlib.Path(args.run)
    if not names:
      parser.error('--to= names no sink')
    if args.live and not _appears(path):
      return 0
    first.raise_interrupts()
    run = run_directory.open(path)
    if not args.live and launcher.running(path):
      raise ValueError(f'{path} is still running. Wait until it has ended.')
  except (ValueError, OSError) as e:
    return commands.refuse(e)
  if args.live:
    (path / 'sinks').mkdir(exist_ok=True)
    log = open(path / 'sinks' / 'log.txt', 'a')
    os.dup2(log.fileno(), 1)  # what packages print is not for the live view
    os.dup2(log.fileno(), 2)
  code = commands.FINISHED
  for name in names:
    try:
      feed(run, name, _closed if args.live else lambda seconds: True)
    except Exception:
      _logger.exception('the sink %s gets no more of this run', name)
      code = commands.FAILED
  print(run.path / 'sinks')
  return code


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
