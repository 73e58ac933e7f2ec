"""Finds the servers or checkpoints that the user's argument refers to."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import re

# Imports nothing slow, so that a wrong target is reported at once.
from replay.inspect import launcher

# Groups of nodes that learn, by topology.
_LEARNERS = ('learner', 'worker', 'explorer')
# Enough for at least one row of each learner.
_TAIL_BYTES = 1 << 16
_ADDRESS = re.compile(r'(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})')


class Unknown(ValueError):
  """The argument is no address, run or checkpoint; the message helps."""


@dataclasses.dataclass(frozen=True)
class Target:
  """Where to read.

  Attributes:
    addresses: of live servers, by label.
    directories: of checkpoints that were there, by label.
    metrics: directory of the run's metrics, or None.
  """

  addresses: Mapping[str, str]
  directories: Mapping[str, pathlib.Path]
  metrics: pathlib.Path | None = None

  def saved(self) -> Mapping[str, pathlib.Path]:
    """Checkpoints of now: a run saves its replay at its end, too."""
    if self.metrics is None:
      return self.directories
    run = self.metrics.parent
    return _shards(run / 'checkpoints' / 'replay') or self.directories

  def ended(self) -> bool:
    """Whether it is a run that has ended, as far as its launcher says."""
    if self.metrics is None:
      return False
    run = self.metrics.parent
    said = 'summary.json', launcher.FILE  # of which one is there by then
    if not any((run / name).exists() for name in said):
      return False

    def wait(words: str) -> None:  # half a minute, of a run of another host
      raise launcher.Refused(words)

    try:
      launcher.check_ended(run, wait)
    except launcher.Refused:
      return False
    return True

  def learner_steps(self) -> int | None:
    """The learner's step of about a second ago; None if it is not known.

    If possible, it is the learner's own, from its newest row: like the versions
    that items carry, it falls back when a learner is restored. The total of the
    run's counter also includes updates that were repeated, and those of other
    members. Of several learners each has a count of its own: None.
    """
    if self.metrics is None:
      return None
    newest: dict[str, int] = {}
    for kind in _LEARNERS:
      with contextlib.suppress(OSError):
        for row in _rows(self.metrics / f'node_{kind}.jsonl'):
          if 'parameters_version' in row:
            newest[row['node']] = int(row['parameters_version'])
    if newest:
      return newest.popitem()[1] if len(newest) == 1 else None
    try:
      values = json.loads((self.metrics / 'counter.json').read_text('utf-8'))
      return int(values['totals']['learner_steps'])
    except (OSError, ValueError, KeyError, TypeError):
      return None


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
  checkpoints = path / 'checkpoints' / 'replay'
  saved = _shards(checkpoints) or _shards(path)
  live = _addresses(path / 'replay')
  if live or saved:
    return Target(live, saved, path / 'metrics')
  raise Unknown(
    f'{path} is neither a run with replay servers (replay/shard_0.json) nor a '
    'replay checkpoint (generation_00000001/). Agents that learn from unrolls '
    '(A2C, IMPALA, PPO) keep none, nor does --topology=evolution; that of '
    "others may live inside the learner's process, or may not have started yet."
  )


def _rows(path: pathlib.Path) -> list[dict]:
  """The last complete rows of a .jsonl file; OSError if there is none."""
  with open(path, 'rb') as file:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    lines = file.read().splitlines()
  rows = []
  for line in lines:
    with contextlib.suppress(ValueError):
      rows.append(json.loads(line))
  return [row for row in rows if isinstance(row, dict)]


def _shards(path: pathlib.Path) -> dict[str, pathlib.Path]:
  found = [p for p in path.glob('shard_*') if any(p.glob('generation_*'))]
  return {
    p.name.replace('_', ' '): p for p in sorted(found, key=lambda p: _number(p))
  }


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
