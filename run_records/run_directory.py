"""One run, one directory: what it holds, how it is made and how it is read.

    runs/NAME/
      config.json     the resolved config of the newest start
      versions.json   of Python and of the packages that matter
      engine.json     where its nodes ran, and the options of that engine
      command.txt     what started it, a line per start, the newest last
      summary.json    why the run ended, totals, result (when it has ended)
      logs/           one file per node
      metrics/        JSON lines and TensorBoard events
      checkpoints/    what can be evaluated and resumed

All of it is plain files: nothing here needs the program to be running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import datetime
import itertools
import os
import pathlib
import re
import shutil
from typing import Any

from murmuration.run_records import commands
from murmuration.run_records import jsonable
from murmuration.run_records import metrics

_MIN_FREE_BYTES = 200_000_000

# As murmuration/objects.py has it, which is of a layer above.
_GIVEN = 'murmuration.given:'
_SUBDIRECTORIES = ('logs', 'metrics', 'checkpoints')


class RunDirectoryRefused(ValueError):
  """The directory cannot be used: says what is there and what to do."""


class RunDirectory:
  """Paths and readers of one run. Reading needs no running program."""

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)
    self.logs = self.path / 'logs'
    self.metrics_directory = self.path / 'metrics'
    self.checkpoints = self.path / 'checkpoints'

  @property
  def name(self) -> str:
    return self.path.resolve().name

  def config(self) -> dict[str, Any]:
    """The resolved config, as nested dicts.

    Raises:
      ValueError: the file does not hold one; names it.
    """
    path = self.path / 'config.json'
    try:
      found = jsonable.read(path)
      if not isinstance(found, dict):
        raise ValueError('no config of a run')
    except ValueError as e:
      raise ValueError(
        f'{path} cannot be read ({e}). Put it back from a copy, or start a new '
        'run.'
      ) from e
    return found

  def commands(self) -> list[str]:
    """The lines that say what started and resumed this run, oldest first."""
    path = self.path / 'command.txt'
    return path.read_text(encoding='utf-8').splitlines()

  def engine(self) -> dict[str, Any]:
    """Where the newest start ran; {} for a run that was not launched."""
    path = self.path / 'engine.json'
    return jsonable.read(path) if path.exists() else {}

  def kinds(self) -> list[str]:
    """Kinds of rows that were logged, for instance 'evaluation', 'star'."""
    files = self.metrics_directory.glob('*.jsonl')
    return sorted(file.stem for file in files)

  def metrics(self, kind: str) -> list[dict[str, Any]]:
    """Rows of one kind in the order of logging; [] if there are none."""
    return list(self.rows(kind))

  def rows(self, kind: str) -> Iterator[dict[str, Any]]:
    """As `metrics`, one at a time: those of a long run fill the memory."""
    for row, _ in metrics.rows(self.metrics_directory / f'{kind}.jsonl'):
      yield row

  def summary(self) -> dict[str, Any] | None:
    """Reason, totals and result; None while it runs or if it was killed."""
    path = self.path / 'summary.json'
    return jsonable.read(path) if path.exists() else None

  def all_broke(self) -> bool:
    """Whether episodes broke, evaluated ones too, and none ever ended whole."""
    try:
      totals = (self.summary() or {}).get('totals', {})
      if totals.get('episodes') or not totals.get('dropped_episodes'):
        return False
      rows = self.metrics('evaluation')
    except (OSError, ValueError):  # they cannot be read: nobody knows
      return False
    broke = any(row.get('broken_episodes') for row in rows)
    return broke and not any(row.get('returns') for row in rows)

  def __fspath__(self) -> str:
    return os.fspath(self.path)

  def __repr__(self) -> str:
    return f'RunDirectory({os.fspath(self.path)!r})'


def given(config: Mapping[str, Any]) -> dict[str, str]:
  """Objects of a run that only the script that defines them has.

  Returns:
    Arguments of `murmuration.load` to the names of the objects.
  """
  names = {
    'agent': str(config.get('agent_name')),
    'environment': str(config.get('environment')),
    'topology': str(config.get('topology')),
  }
  return {
    argument: name.removeprefix(_GIVEN)
    for argument, name in names.items()
    if name.startswith(_GIVEN)
  }


def loading(path: str | os.PathLike[str], config: Mapping[str, Any]) -> str:
  """The call that loads a run where its objects are defined."""
  words = [repr(os.fspath(path))]
  words += [f'{argument}={name}' for argument, name in given(config).items()]
  return f'murmuration.load({", ".join(words)})'


def default_name(agent: str, environment: str) -> str:
  """'<agent>-<environment>', as one level of a path."""
  # Ids such as 'ALE/Pong-v5' must not make a level of their own.
  return '-'.join(
    re.sub(r'[^A-Za-z0-9._]+', '-', word).strip('-')
    for word in (agent, environment)
  )


def default_path(
  agent: str,
  environment: str,
  root: str | os.PathLike[str] = 'runs',
  now: datetime.datetime | None = None,
) -> pathlib.Path:
  """Makes `runs/<agent>-<environment>-<timestamp>`, empty, and no one else's.

  Who makes no run of it after all gives it back: `give_back`.

  Raises:
    RunDirectoryRefused: it cannot be made.
  """
  now = datetime.datetime.now() if now is None else now
  name = f'{default_name(agent, environment)}-{now:%Y%m%d-%H%M%S}'
  path = pathlib.Path(root) / name
  try:
    for number in itertools.count(2):
      path.parent.mkdir(parents=True, exist_ok=True)
      # Of another run; or one that was refused took the empty parent along.
      with contextlib.suppress(FileExistsError, FileNotFoundError):
        path.mkdir()
        break
      path = path.with_name(f'{name}-{number}')
  except OSError as e:
    raise _cannot_be_written(path, e) from e
  return path


def give_back(path: pathlib.Path) -> None:
  """Removes a `default_path` that is empty still, and `runs/` if that is."""
  for empty in (path, path.parent):
    with contextlib.suppress(OSError):
      empty.rmdir()


def discard(path: pathlib.Path) -> None:
  """Removes a run; a link or a mount that it was made in is left empty."""
  with contextlib.suppress(OSError):
    for entry in path.iterdir():
      shutil.rmtree(entry, True) if entry.is_dir() else entry.unlink()
    path.rmdir()


def create(
  path: str | os.PathLike[str],
  config: Any,
  versions: Mapping[str, str],
  *,
  engine: Mapping[str, Any] | None = None,
  command: str | None = None,
  resume: bool = False,
) -> RunDirectory:
  """Makes the directory of a new run, or opens an old one to go on with it.

  Everything is checked before the first byte is written. A directory is a run
  once config.json, the last file, is there.

  Args:
    path: of the run. Parents are made.
    config: resolved config, a dict or dataclass.
    versions: package name to version.
    engine: where its nodes run; for `RunDirectory.engine`.
    command: a line that says what led to the run; None: the command line of
      this process.
    resume: go on in an existing run directory. Its metrics, logs and
      checkpoints stay; a config that differs replaces config.json, and the
      old one is kept as config.<n>.json.

  Raises:
    RunDirectoryRefused: there is something in the way, nothing to resume, no
      right to write, or too little disk.
  """
  path = pathlib.Path(path)
  # Not after half of the files are there.
  config = jsonable.encode(config)
  files = {'versions.json': jsonable.encode(versions)}
  if engine is not None:
    files['engine.json'] = jsonable.encode(engine)
  line = commands.line() if command is None else command
  if resume:
    open(path)
  else:
    check_free(path)
  _check_disk(path)
  try:
    path.mkdir(parents=True, exist_ok=True)
    for name in _SUBDIRECTORIES:
      (path / name).mkdir(exist_ok=resume)
  except OSError as e:  # as where another process has begun there just now
    raise _cannot_be_written(path, e) from e
  try:
    for name, content in files.items():
      jsonable.write(path / name, content)
    with (path / 'command.txt').open('a', encoding='utf-8') as file:
      file.write(line + '\n')
    _write_config(path, config)  # now it is a run
  except BaseException as e:
    if not resume:
      discard(path)
    if isinstance(e, OSError):
      raise _cannot_be_written(path, e) from e
    raise
  return RunDirectory(path)


def open(path: str | os.PathLike[str]) -> RunDirectory:
  """Opens an existing run for reading.

  Raises:
    RunDirectoryRefused: there is no run; names the runs that lie beside it.
  """
  path = pathlib.Path(path)
  if not _holds_run(path):
    what = 'is not there' if not path.exists() else 'holds no config.json'
    raise RunDirectoryRefused(
      f'{path} {what}, so it is not a run.{_neighbours(path)}'
    )
  return RunDirectory(path)


def _holds_run(path: pathlib.Path) -> bool:
  return (path / 'config.json').is_file()


def _neighbours(path: pathlib.Path) -> str:
  """Names the newest runs in a directory and beside it."""
  found = [
    config.parent
    for root in (path, path.parent)
    for config in root.glob('*/config.json')
  ]
  if not found:
    return ' Give the directory of a run, for instance runs/NAME.'
  found.sort(key=lambda run: run.stat().st_mtime, reverse=True)
  names = ', '.join(map(str, found[:3]))
  return f' Runs that are there, newest first: {names}.'


def check_name(path: pathlib.Path) -> None:
  """Refuses a name that is not UTF-8, as all that a run writes."""
  try:
    str(path).encode()
  except UnicodeEncodeError as e:
    raise RunDirectoryRefused(
      f'{path!r} is not UTF-8 in this locale. Set LC_ALL=C.UTF-8, or give '
      'another --run_dir.'
    ) from e


def check_free(path: pathlib.Path) -> None:
  """Refuses a directory for a new run that is not empty, or not writable."""
  there = next(p for p in (path, *path.absolute().parents) if p.exists())
  if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
    raise RunDirectoryRefused(
      f'{path} cannot be written: {there} is a file, or you may not write '
      'there. Give another --run_dir.'
    )
  content = sorted(os.listdir(path)) if path.is_dir() else []
  if content:
    what = 'a run' if _holds_run(path) else ', '.join(content[:3])
    raise RunDirectoryRefused(
      f'{path} already holds {what}. Give another --run_dir.'
    )


def _cannot_be_written(
  path: pathlib.Path, error: OSError
) -> RunDirectoryRefused:
  return RunDirectoryRefused(
    f'{path} cannot be written: {error.strerror or error}. Give another '
    '--run_dir.'
  )


def _check_disk(path: pathlib.Path) -> None:
  existing = next(p for p in (path, *path.absolute().parents) if p.exists())
  free = shutil.disk_usage(existing).free
  if free < _MIN_FREE_BYTES:
    raise RunDirectoryRefused(
      f'{path} is on a disk with {free / 1e6:,.0f} MB free; a run needs '
      f'{_MIN_FREE_BYTES / 1e6:,.0f} MB for logs, metrics and checkpoints. '
      'Free some, or give a --run_dir on another disk.'
    )


def _write_config(path: pathlib.Path, config: Any) -> None:
  """Writes config.json; one that differs is kept as config.<n>.json."""
  old = path / 'config.json'
  if old.exists():
    if jsonable.encode(jsonable.read(old)) == config:
      return
    number = 1
    while (path / f'config.{number}.json').exists():
      number += 1
    shutil.copy2(old, path / f'config.{number}.json')
  jsonable.write(old, config)
