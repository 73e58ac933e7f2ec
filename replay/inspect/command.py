"""Looks into replay: a live server, all shards of a run, or a checkpoint.

    murmuration inspect localhost:8000
    murmuration inspect runs/NAME --watch
    murmuration inspect runs/NAME/checkpoints/replay/shard_0 --sample 3

The state of a server costs next to nothing to read. Items of a live server
count as sampled when --sample and --histogram show them (docs/replay.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import socket
import sys

# Imports nothing slow: --help and mistakes are answered at once.
from murmuration.replay import isolation

USAGE = 2
# run_records/launcher.py writes it, and locks it while the launcher lives.
_LAUNCHER = 'launcher.json'
_ADDRESS = re.compile(r'(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})')


class Unknown(ValueError):
  """The argument is no address, run or checkpoint."""


@dataclasses.dataclass(frozen=True)
class Target:
  """Where to read.

  Attributes:
    addresses: of live servers, by label.
    checkpoint: directory of a checkpoint, or None.
    run: directory of a run, or None.
  """

  addresses: Mapping[str, str]
  checkpoint: pathlib.Path | None = None
  run: pathlib.Path | None = None

  def saved(self) -> dict[str, pathlib.Path]:
    """Directories of the checkpoints that are there now, by label."""
    if self.checkpoint is not None:
      return {'checkpoint': self.checkpoint}
    return {} if self.run is None else _checkpoints(self.run)

  def ended(self) -> bool:
    """Whether it is a run whose launcher has ended."""
    if self.run is None:
      return False
    record = self.run / _LAUNCHER
    there = record.exists() or (self.run / 'summary.json').exists()
    return there and not _locked(record)

  def join(self) -> bool:
    """Moves this process into the network of the run, if it has its own.

    Returns:
      Whether there may be live servers.

    Raises:
      Unknown: the record of the launcher cannot be read.
      isolation.Refused: see `isolation.join`.
    """
    if self.run is None:
      return bool(self.addresses)
    record = self.run / _LAUNCHER
    if not record.exists():
      return bool(self.addresses)
    if not _locked(record):
      return False
    try:
      values = json.loads(record.read_text(encoding='utf-8'))
      pid, host = int(values['pid']), values['host']
    except (OSError, ValueError, LookupError, TypeError) as e:
      raise Unknown(f'{record} is not readable: {e!r}.') from e
    if host != socket.gethostname():
      return True  # its network is not here
    return isolation.join(pid, str(self.run))


def find(text: str) -> Target:
  """What an address, a run or a checkpoint refers to.

  Raises:
    Unknown: the text is none of the three.
  """
  path = pathlib.Path(text)
  if path.is_dir():
    return _directory(path)
  match = _ADDRESS.fullmatch(text)
  if match and 0 < int(match[2]) < 65536:
    return Target({'replay': text})
  if text.isdigit():
    raise Unknown(f'{text!r} is only a port. Give localhost:{text}.')
  raise Unknown(
    f'{text!r} is no directory and no address. Give HOST:PORT of a replay '
    'server, the directory of a run, or one of its checkpoints.'
  )


def _directory(path: pathlib.Path) -> Target:
  if (path / 'tables.tfrecord').exists() or any(path.glob('generation_*')):
    return Target({}, path)
  live = {}
  for file in sorted((path / 'replay').glob('shard_*.json'), key=_number):
    try:
      address = json.loads(file.read_text(encoding='utf-8'))['address']
    except (OSError, ValueError, KeyError, TypeError) as e:
      raise Unknown(f'{file} holds no address of a shard: {e!r}.') from e
    live[file.stem.replace('_', ' ')] = str(address)
  if live or _checkpoints(path):
    return Target(live, run=path)
  raise Unknown(
    f'{path} is neither a run with replay servers (replay/shard_0.json) nor a '
    'replay checkpoint (generation_00000001/). Agents that learn from unrolls '
    '(A2C, IMPALA, PPO) keep none, nor does --topology=evolution; that of '
    "others may live inside the learner's process, or may not have started yet."
  )


def _checkpoints(path: pathlib.Path) -> dict[str, pathlib.Path]:
  """Of the shards of a run, or of its directory of checkpoints."""
  for directory in (path / 'checkpoints' / 'replay', path):
    found = [p for p in directory.glob('shard_*') if [*p.glob('generation_*')]]
    if found:
      return {p.name.replace('_', ' '): p for p in sorted(found, key=_number)}
  return {}


def _number(path: pathlib.Path) -> int:
  match = re.search(r'\d+', path.stem)
  return int(match[0]) if match else -1


def _locked(path: pathlib.Path) -> bool:
  try:
    with open(path, 'rb') as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:
    pass
  return False


# The command.


def main(argv: Sequence[str] | None = None, own_process: bool = False) -> int:
  """Runs the command; returns its exit code: 0, or 2 after an error message.

  `own_process` says that this process only runs the command, which may then
  change the network of the process.
  """
  args = _parse(argv)
  try:
    target = find(args.target)
    if args.watch and not target.addresses:
      raise Unknown(
        '--watch is for live servers: a checkpoint does not change.'
      )
    # While there is only one thread.
    if own_process and not (target.addresses and target.join()):
      # A server in this process decodes a checkpoint.
      isolation.prepare()
      isolation.enter('auto')
  except (Unknown, isolation.Refused) as e:
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


def _once(args: argparse.Namespace, target: Target) -> None:
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


def _watch(args: argparse.Namespace, target: Target) -> None:
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
