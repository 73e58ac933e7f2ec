"""Inspects replay: a live server, all shards of a run, or a checkpoint.

    murmuration inspect localhost:8000
    murmuration inspect runs/NAME --watch
    murmuration inspect runs/NAME/checkpoints/replay/shard_0 --sample 3

Reading costs a server next to nothing. Items of a live server count as sampled
when they are looked at, with --sample and --histogram (docs/replay.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

# Imports nothing slow, so that --help and usage errors are answered at once.
from murmuration.replay import isolation
from murmuration.replay.inspect import target as inspect_target

USAGE = 2
# Seconds of waiting at the start before the user is told the reason.
_PATIENCE_S = 1.0


def main(argv: Sequence[str] | None = None, own_process: bool = False) -> int:
  """Runs the command; returns its exit code: 0, or 2 after an error message.

  `own_process` says that this process only runs the command, which may then
  change the network of the process.
  """
  args = _parse(argv)
  try:
    target = inspect_target.find(args.target)
    if args.watch and not target.addresses:
      raise inspect_target.Unknown(
        '--watch is for live servers: a checkpoint does not change.'
      )
    if own_process:
      _enter_network(target)  # while there is only one thread
  except (inspect_target.Unknown, isolation.Refused) as e:
    return _fail(str(e))
  # Keeps TensorFlow's log lines out of the output.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  try:
    with _patience(f'connecting to {args.target} (loading TensorFlow) ...'):
      from murmuration.replay.inspect import read as reading
    try:
      (_watch if args.watch else _once)(args, target)
    except reading.Failed as e:
      return _fail(str(e))
  except BrokenPipeError:  # Such as `| head`.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except KeyboardInterrupt:
    return 0 if args.watch else 130
  return 0


def _enter_network(target: inspect_target.Target) -> None:
  """Enters the run's network, or a private one for a server of its own."""
  if not (target.addresses and target.join()):
    # A server in this process reads the checkpoint.
    isolation.prepare()
    isolation.enter('auto')


def _once(args: argparse.Namespace, target: inspect_target.Target) -> None:
  from murmuration.replay.inspect import draw
  from murmuration.replay.inspect import report as reports

  looking = args.sample or args.histogram
  report = reports.collect(args, target, 0.0 if looking else args.interval)
  if not looking:
    if args.json:
      print(json.dumps(reports.as_dict(report)))
    else:
      draw.show(draw.report(report))
    return
  looks = reports.look(report, args.timeout, args.sample)
  bars = {}
  if args.histogram:
    found = reports.priorities(report, looks)
    bars = {name: draw.bins(*own) for name, own in found.items()}
  if args.json:
    values = reports.as_dict(report, looks if args.sample else None)
    if args.histogram:
      values['histogram'] = {
        name: {'edges': edges.tolist(), 'parts': parts.tolist()}
        for name, (edges, parts) in bars.items()
      }
    print(json.dumps(values))
  elif args.histogram:
    draw.show(draw.histogram(report, looks, found, bars))
  else:
    draw.show(draw.samples(report, looks))


def _watch(args: argparse.Namespace, target: inspect_target.Target) -> None:
  from rich import console as rich_console
  from rich import live

  from murmuration.replay.inspect import draw
  from murmuration.replay.inspect import read as reading
  from murmuration.replay.inspect import report as reports

  console = rich_console.Console(highlight=False)
  shown: Any = contextlib.nullcontext()
  on_screen = console.is_terminal and not args.json
  if on_screen:
    shown = live.Live(console=console, auto_refresh=False)
  before = None
  with shown:
    while True:
      try:
        report = reports.collect(args, target, args.interval, before)
      except reading.Failed as e:
        if before is None:
          raise
        # Keeps trying: the server may come back.
        frame: Any = f'{e} Trying again; Ctrl-C ends this.'
        if on_screen:
          shown.update(frame, refresh=True)
        else:
          print(frame, file=sys.stderr)
        time.sleep(args.interval)
        continue
      before = report.shards
      if args.json:
        print(json.dumps(reports.as_dict(report)), flush=True)
      elif on_screen:
        shown.update(draw.report(report), refresh=True)
      else:
        console.print(draw.report(report))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='murmuration inspect',
    description='Look into replay: what it holds, its speed, who waits.',
    epilog='A live server counts every item that is looked at as sampled. '
    'docs/replay.md explains what is shown.',
  )
  add = parser.add_argument
  add('target', help='HOST:PORT, a run directory, or a checkpoint directory')
  add('--table', metavar='NAME', help='only this table')
  add(
    '--interval',
    type=_seconds,
    default=2.0,
    metavar='S',
    help='seconds over which rates are measured (2; 0: none)',
  )
  add('--watch', action='store_true', help='again and again, until Ctrl-C')
  add('--sample', type=_count, metavar='N', help='decode N items of each table')
  add('--histogram', choices=('priorities',), help='draw how these are spread')
  add('--json', action='store_true', help='for scripts')
  add(
    '--timeout',
    type=_seconds,
    default=5.0,
    metavar='S',
    help='seconds to wait for a server (5), once TensorFlow is loaded',
  )
  args = parser.parse_args(argv)
  if args.sample is not None and args.histogram:
    parser.error('--sample and --histogram: choose one.')
  if args.watch and (args.sample or args.histogram):
    parser.error(
      '--watch with --sample or --histogram would sample a live server again '
      'and again. Use one of them.'
    )
  if args.timeout <= 0 or (args.watch and args.interval <= 0):
    parser.error('--timeout, and --interval with --watch, must be above 0 s.')
  return args


def _count(text: str) -> int:
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f'{value} must be at least 1')
  return value


def _seconds(text: str) -> float:
  value = float(text)
  if not 0 <= value < float('inf'):
    raise argparse.ArgumentTypeError(f'{text} is no number of seconds')
  return value


@contextlib.contextmanager
def _patience(message: str) -> Iterator[None]:
  """Prints `message` if the block takes longer than _PATIENCE_S."""
  timer = threading.Timer(
    _PATIENCE_S, lambda: print(message, file=sys.stderr, flush=True)
  )
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


def _fail(message: str) -> int:
  print(f'error: {message}', file=sys.stderr)
  return USAGE
