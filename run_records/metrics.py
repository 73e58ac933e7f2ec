"""What is measured in a run: JSON lines and TensorBoard events, both flushed.

Each kind of row has its own file `<kind>.jsonl`, so that `jq`, pandas and the
plots read one kind without sifting. The TensorBoard file lies beside them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
import contextlib
import errno
import io
import json
import mmap
import os
import pathlib
import re
import socket
import threading
import time
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto import summary_pb2
from tensorboard.summary.writer import record_writer

from murmuration.run_records import jsonable

_KIND = re.compile(r'[A-Za-z0-9][A-Za-z0-9_-]*')
_WAITING = 100_000  # rows
_RETRY_S = 1.0
NODE = 'node_'  # prefix of the kinds of rows of nodes


class MetricsWriter:
  """Appends rows to JSON lines and scalars to TensorBoard. Thread-safe.

  Every row is on its way to the disk when the call returns: a node that is
  killed loses nothing it has written. A disk that takes nothing costs no row
  while there is memory for it: rows wait for room (the newest _WAITING of
  them), and scalars are left out.

  Attributes:
    error: why nothing can be written now, None if all is well.
    waiting: rows that wait for room.
  """

  def __init__(self, directory: str | os.PathLike[str]):
    """Makes the directory if needed; files are opened when first written.

    Args:
      directory: where `<kind>.jsonl` and the event file go. Several writers
        one after the other may use it; they append.
    """
    self._directory = pathlib.Path(directory)
    self._directory.mkdir(parents=True, exist_ok=True)
    self._lock = threading.Lock()
    self._files: dict[str, io.FileIO] = {}
    self._rows: collections.deque[tuple[str, bytes]] = collections.deque(
      maxlen=_WAITING
    )
    self._next_try = 0.0
    self.error: OSError | None = None
    self._events: record_writer.RecordWriter | None = None
    self._closed = False

  def row(self, kind: str, row: Mapping[str, Any]) -> None:
    """Appends one JSON line to `<kind>.jsonl`.

    Args:
      kind: file name without its ending: letters, digits, `_` and `-`.
      row: names to numbers, strings, lists, dicts, NumPy arrays or scalars.
        Non-finite numbers are written as 'inf', '-inf', 'nan', as JSON has
        none; `read_jsonl` turns them back.

    Raises:
      ValueError: the kind cannot be a file name.
      TypeError: a value that JSON cannot hold.
    """
    if not _KIND.fullmatch(kind):
      raise ValueError(
        f'kind={kind!r} cannot name a metrics file: only letters, digits, '
        '"_" and "-" are allowed, and it starts with a letter or digit.'
      )
    line = json.dumps(jsonable.encode(row), allow_nan=False)
    with self._lock:
      if self._closed:
        return
      self._rows.append((kind, f'{line}\n'.encode()))
      self._write()

  @property
  def waiting(self) -> int:
    return len(self._rows)

  def retry(self) -> None:
    """Writes rows that waited, if there is room now."""
    with self._lock:
      if not self._closed:
        self._write()

  def _write(self) -> None:
    """Writes what waits; after a failure, not at once again. Locked."""
    if self.error is not None and time.monotonic() < self._next_try:
      return
    try:
      while self._rows:
        kind, line = self._rows[0]
        if kind not in self._files:
          path = self._directory / f'{kind}.jsonl'
          self._files[kind] = _open_for_append(path)
        file = self._files[kind]
        if file.write(line) != len(line):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        self._rows.popleft()
    except OSError as e:
      self._failed(e)
      # Opened again, it is cut to whole lines.
      broken = self._files.pop(kind, None)
      if broken is not None:
        broken.close()
    else:
      self.error = None

  def _failed(self, error: OSError) -> None:
    self.error = error
    self._next_try = time.monotonic() + _RETRY_S

  def scalars(self, values: Mapping[str, Any], step: int) -> None:
    """Writes TensorBoard scalars; what is not one number is left out.

    Args:
      values: tag to number. Strings, lists and None are ignored.
      step: the x axis, by convention the total `actor_steps`.
    """
    numbers = {tag: number(value) for tag, value in values.items()}
    summary = summary_pb2.Summary(
      value=[
        summary_pb2.Summary.Value(tag=tag, simple_value=number)
        for tag, number in numbers.items()
        if number is not None
      ]
    )
    if not summary.value:
      return
    now = time.time()
    event = event_pb2.Event(wall_time=now, step=int(step), summary=summary)
    with self._lock:
      if self._closed or self.error is not None:
        return
      try:
        if self._events is None:
          self._events = _new_event_file(self._directory, now)
        self._events.write(event.SerializeToString())
        self._events.flush()
      except OSError as e:
        self._failed(e)
        # What is in its buffer cannot be written. The next is another file.
        self._events = None

  def close(self) -> None:
    """Closes the files. Later rows are dropped without an error."""
    with self._lock:
      self._next_try = 0.0
      self._write()
      self._closed = True
      for file in self._files.values():
        file.close()
      self._files.clear()
      if self._events is not None:
        with contextlib.suppress(OSError):
          self._events.close()
        self._events = None


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the rows of one file; [] if there is no such file. As `rows`."""
  return [row for row, _ in rows(path)]


def rows(
  path: str | os.PathLike[str], start: int = 0
) -> Iterator[tuple[dict[str, Any], int]]:
  """Yields the rows of one file, each with the byte at which it ends.

  A last line without its end of line is still being written, or was cut by a
  kill, and is left out. There are none if there is no such file.

  Args:
    path: of the file.
    start: the byte to begin at, where a row ends.

  Raises:
    ValueError: a complete line is not JSON; names file and line.
  """
  try:
    file = open(path, 'rb')
  except FileNotFoundError:
    return
  with file:
    file.seek(start)
    end = start
    for number, line in enumerate(file, start=1):
      if not line.endswith(b'\n'):
        return
      end += len(line)
      if not line.strip():
        continue
      try:
        row = jsonable.decode(json.loads(line))
      except ValueError as error:
        place = f'{path}:{number}' + f' (from byte {start} on)' * bool(start)
        raise ValueError(
          f'{place} is not a JSON line ({error}). The file was changed by '
          'something else than a run; remove the line to read the rest.'
        ) from error
      yield row, end


def newest_rows(
  directory: str | os.PathLike[str],
) -> dict[str, dict[str, Any]]:
  """Kind to its last row, of all files in a directory; broken ones left out."""
  found = {}
  for path in pathlib.Path(directory).glob('*.jsonl'):
    with contextlib.suppress(ValueError):
      before = end_of_rows(path, end_of_rows(path) - 1)
      for row, _ in rows(path, before):
        found[path.stem] = row
  return found


def end_of_rows(path: str | os.PathLike[str], before: int | None = None) -> int:
  """The byte at which the last whole line ends; 0 if there is none.

  With `before`, of the lines that end before that byte.
  """
  try:
    with open(path, 'rb') as file:
      # The files of a long run have GBs, so they are not read.
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content) if before is None else max(before, 0)
        return content.rfind(b'\n', 0, end) + 1
  except (FileNotFoundError, NotADirectoryError, ValueError):
    return 0  # an empty one cannot be mapped


def number(value: Any) -> float | None:
  """A scalar as a float; None for what is no number."""
  if isinstance(value, (bool, int, float, np.number, np.bool_)) or (
    isinstance(value, np.ndarray) and value.ndim == 0
  ):
    return float(value)
  return None


def tagged(kind: str, row: Mapping[str, Any]) -> tuple[dict[str, float], int]:
  """Maps a row to its numbers by TensorBoard tag, and its environment steps.

  Rows of nodes have tags such as 'explorer_0/loss', others 'evaluation/...'.
  """
  group, left_out = kind, {'actor_steps', 'unix_time_s'}
  if kind.startswith(NODE):
    group = row['node'].replace('/', '_')
    left_out.add('elapsed_s')
  numbers = {
    f'{group}/{name}': number(value)
    for name, value in row.items()
    if name not in left_out
  }
  found = {tag: value for tag, value in numbers.items() if value is not None}
  return found, int(row['actor_steps'])


def _open_for_append(path: pathlib.Path) -> io.FileIO:
  if path.exists():
    # A writer that was killed may have left half a line: the next row must
    # not be glued to it.
    os.truncate(path, end_of_rows(path))
  return io.FileIO(path, 'a')


def _new_event_file(
  directory: pathlib.Path, now: float
) -> record_writer.RecordWriter:
  # TensorBoard's own EventFileWriter would import TensorFlow for its file
  # system; a run directory is local, so a plain file does.
  path = directory / (
    f'events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}'
    f'.{time.monotonic_ns()}'
  )
  writer = record_writer.RecordWriter(path.open('wb'))
  first = event_pb2.Event(wall_time=now, file_version='brain.Event:2')
  writer.write(first.SerializeToString())
  return writer
