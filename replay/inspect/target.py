"""Finds the servers or checkpoints that the user's argument refers to."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import pathlib
import re
import socket

# Imports nothing slow: mistakes are answered at once.
from murmuration.replay import isolation

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
    return there and not isolation.is_held(record)

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
    if not isolation.is_held(record):
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
    'others may not have started yet, or is in the memory of the workers: '
    'start the run with --config.run.replay=colocated to see it.'
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
