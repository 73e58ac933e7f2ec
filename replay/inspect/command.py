"""Looks into replay: a live server, all shards of a run, or a checkpoint.

    murmuration inspect localhost:8000
    murmuration inspect runs/NAME --watch
    murmuration inspect runs/NAME/checkpoints/replay/shard_0 --sample 3

The state of a server costs next to nothing to read. Items of a live server
count as sampled when --sample and --histogram show them (docs/replay.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import os
import sys

# Imports nothing slow: --help and mistakes are answered at once.
from murmuration.replay import isolation
from murmuration.replay.inspect import target as inspect_target

USAGE = 2


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
    # While there is only one thread.
    if own_process and not (target.addresses and target.join()):
      # A server in this process decodes a checkpoint.
      isolation.prepare()
      isolation.enter('auto')
  except (inspect_target.Unknown, isolation.Refused) as e:
    return _fail(e)
  # Keeps TensorFlow's log lines out of the output.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  from murmuration.replay.inspect import read

  try:
    (_watch if args.watch else _once)(args, target)
  except read.Failed as e:
    return _fail(e)
  except BrokenPipeError:  # such as `| head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except KeyboardInterrupt:
    return 0 if args.watch else 130
  return 0


def _once(args: argparse.Namespace, target: inspect_target.Target) -> None:
  from murmuration.replay.inspect import read
  from murmuration.replay.inspect import show

  looking = bool(args.sample or args.histogram)
  report = read.collect(args, target, 0.0 if looking else args.interval)
  if looking:
    read.look(report, args.timeout, args.sample)
  if args.json:
    print(json.dumps(show.as_dict(report, bool(args.histogram))))
  elif args.histogram:
    show.draw(show.histogram(report))
  elif args.sample:
    show.draw(show.samples(report))
  else:
    show.draw(show.report(report))


def _watch(args: argparse.Namespace, target: inspect_target.Target) -> None:
  from murmuration.replay.inspect import read
  from murmuration.replay.inspect import show

  before = None
  with show.screen(args.json) as update:
    while True:
      try:
        report = read.collect(args, target, args.interval, before)
      except read.Failed as e:
        if before is None:
          raise
        update(f'{e} Trying again; Ctrl-C ends this.')
        continue
      before = report.shards
      update(report)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='murmuration inspect',
    description='Look into replay: what it holds, its speed, who waits.',
    epilog='A live server counts every item that is looked at as sampled. '
    'docs/replay.md explains what is shown.',
  )
  add = parser.add_argument
  add('target', help='HOST:PORT, a run directory, or a checkpoint directory')
  add(
    '--interval',
    type=float,
    default=2.0,
    metavar='S',
    help='seconds over which rates are measured (2; 0: none)',
  )
  add('--watch', action='store_true', help='again and again, until Ctrl-C')
  add('--sample', type=int, metavar='N', help='decode N items of each table')
  add('--histogram', choices=('priorities',), help='draw how these are spread')
  add('--json', action='store_true', help='for scripts')
  add(
    '--timeout',
    type=float,
    default=5.0,
    metavar='S',
    help='seconds to wait for a server (5), once TensorFlow is loaded',
  )
  args = parser.parse_args(argv)
  if args.sample is not None and args.sample < 1:
    parser.error(f'--sample={args.sample} must be at least 1 item.')
  if sum(map(bool, (args.watch, args.sample, args.histogram))) > 1:
    parser.error('--watch, --sample, --histogram: choose one.')
  if not (
    0 < args.timeout < float('inf')
    and 0 <= args.interval < float('inf')
    and (args.interval or not args.watch)
  ):
    parser.error(
      f'--timeout={args.timeout:g} and --interval={args.interval:g} must be '
      'above 0 s (--interval=0 without --watch measures no rates).'
    )
  return args


def _fail(error: Exception) -> int:
  print(f'error: {error}', file=sys.stderr)
  return USAGE
