"""Finds the servers or checkpoints that the user's argument refers to."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import fcntl
import json
import pathlib
import re
import socket

# Imports nothing slow, so that a wrong target is reported at once.
from murmuration.replay import isolation

# What run_records/launcher.py writes, and locks while the run's launcher lives.
_LAUNCHER = 'launcher.json'
_ADDRESS = re.compile(r'(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})')


class Unknown(ValueError):
  """The argument is no address, run or checkpoint; the message helps."""


@dataclasses.dataclass(frozen=True)
class Target:
  """Where to read.

  Attributes:
    addresses: of live servers, by label.
    directories: of checkpoints that were there, by label.
    run: its directory, or None.
  """

  addresses: Mapping[str, str]
  directories: Mapping[str, pathlib.Path]
  run: pathlib.Path | None = None

  def saved(self) -> Mapping[str, pathlib.Path]:
    """Checkpoints of now: a run saves its replay at its end, too."""
    if self.run is None:
      return self.directories
    return _shards(self.run / 'checkpoints' / 'replay') or self.directories

  def ended(self) -> bool:
    """Whether it is a run whose launcher has ended."""
    if self.run is None:
      return False
    said = 'summary.json', _LAUNCHER  # of which one is there by then
    return any((self.run / name).exists() for name in said) and not _locked(
      self.run / _LAUNCHER
    )

  def join(self) -> bool:
    """Moves this process into the network of the run, if it has its own.

    Returns:
      Whether its servers may be there.

    Raises:
      Unknown: the record of its launcher cannot be read.
      isolation.Refused: see `isolation.join`.
    """
    if self.run is None:
      return bool(self.addresses)
    record = self.run / _LAUNCHER
    try:
      values = json.loads(record.read_text(encoding='utf-8'))
      pid, host = int(values['pid']), values['host']
    except FileNotFoundError:
      return True
    except (OSError, ValueError, LookupError, TypeError) as e:
      raise Unknown(f'{record} is not readable: {e!r}.') from e
    if not _locked(record):
      return False
    if host != socket.gethostname():
      return True  # its network is not here
    return isolation.join(pid, str(self.run))


def _locked(path: pathlib.Path) -> bool:
  try:
    with open(path, 'rb') as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except BlockingIOError:
    return True
  except OSError:
    pass
  return False


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
    return Target({'replay': text}, {})
  if match:
    raise Unknown(f'{text!r}: a port lies between 1 and 65535.')
  if text.isdigit():
    raise Unknown(f'{text!r} is only a port. Give localhost:{text}.')
  raise Unknown(
    f'{text!r} is no directory and no address. Give HOST:PORT of a replay '
    'server, the directory of a run, or one of its checkpoints.'
  )


def _directory(path: pathlib.Path) -> Target:
  if (path / 'tables.tfrecord').exists() or any(path.glob('generation_*')):
    return Target({}, {'checkpoint': path})
  saved = _shards(path / 'checkpoints' / 'replay') or _shards(path)
  live = _addresses(path / 'replay')
  if live or saved:
    return Target(live, saved, path)
  raise Unknown(
    f'{path} is neither a run with replay servers (replay/shard_0.json) nor a '
    'replay checkpoint (generation_00000001/). Agents that learn from unrolls '
    '(A2C, IMPALA, PPO) keep none, nor does --topology=evolution; that of '
    'others may not have started yet, or is in the memory of the workers: '
    'start the run with --config.run.replay=colocated to see it.'
  )


def _shards(path: pathlib.Path) -> dict[str, pathlib.Path]:
  found = [p for p in path.glob('shard_*') if any(p.glob('generation_*'))]
  return {p.name.replace('_', ' '): p for p in sorted(found, key=_number)}


def _addresses(path: pathlib.Path) -> dict[str, str]:
  found: dict[str, str] = {}
  for file in sorted(path.glob('shard_*.json'), key=_number):
    try:
      values: Mapping = json.loads(file.read_text(encoding='utf-8'))
      found[file.stem.replace('_', ' ')] = str(values['address'])
    except (OSError, ValueError, KeyError, TypeError) as e:
      raise Unknown(
        f'{file} is not readable as a shard file ({e!r}): it needs '
        '{"address": "HOST:PORT", "shard": NUMBER}.'
      ) from e
  return found


def _number(path: pathlib.Path) -> int:
  match = re.search(r'(\d+)', path.stem)
  return int(match[1]) if match else -1
