"""What a counter goes on from when it was killed: its state, and a journal.

    metrics/counter.json      all of it, some times a second
    metrics/counter.journal   a line for each report since then, for the number
                              of a row of metrics, and for who holds the end

A node that was told that something is counted never says it again, so that
each report must be kept before it is answered. The state grows with the nodes;
a line does not.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import io
import json
import math
import pathlib
import threading
import time
from typing import Any
import zlib

from run_records import checkpoints
from run_records import durable

JOURNAL = 'counter.journal'
_PERIOD_S = 0.5
_SYNC_PERIOD_S = 5.0
_RETRY_S = 1.0  # as all lines that wait are written again
_NUMBER = 'changes'  # of the state: the newest entry that it holds


class CounterFile:
  """Keeps changes, by ascending numbers. Thread-safe.

  Attributes:
    error: why they are in memory only; None if they are not.
  """

  def __init__(self, directory: pathlib.Path):
    self._state = directory / checkpoints.COUNTER
    self._journal = directory / JOURNAL
    self._saving = threading.Lock()  # of the state
    self._writing = threading.Lock()  # of the journal
    self._adding = threading.Lock()
    self._new: list[tuple[int, bytes]] = []
    self._lines: list[tuple[int, bytes]] = []  # written, newer than the state
    self._file: io.FileIO | None = None  # None: to be written anew
    self._errors: dict[pathlib.Path, OSError] = {}
    self._saved = self._synced = self._next_try = -math.inf

  @property
  def error(self) -> OSError | None:
    return next(iter(self._errors.values()), None)

  def read(self) -> tuple[dict[str, Any] | None, list[list[Any]]]:
    """The state that was saved last, and the entries that came after it.

    Returns:
      (state or None, entries without their numbers). After a damaged line, or
      a state that is an older generation, entries are missing: then none of
      those behind the gap is given.
    """
    state = checkpoints.read_state(self._state, repair=True)
    entries: list[list[Any]] = []
    for number, entry, line in _newer(self._journal, state):
      entries.append(entry)
      self._lines.append((number, line))
    return state, entries

  def add(self, number: int, entry: Sequence[Any]) -> None:
    """Takes the entry of a change; `flush` keeps it."""
    line = json.dumps([number, *entry]).encode()
    line = b'%08x %s\n' % (zlib.crc32(line), line)
    with self._adding:
      self._new.append((number, line))

  def flush(self) -> None:
    """Writes all entries so far: who waits here finds its own written.

    After an error they wait in memory, and are tried again now and then.
    """
    with self._writing:
      with self._adding:
        new, self._new = self._new, []
      self._lines += new
      if self._file is None:
        if self._lines and time.monotonic() >= self._next_try:
          self._rewrite()
      elif new:
        data = b''.join(line for _, line in new)
        self._try(self._journal, functools.partial(_write, self._file, data))

  def save(
    self,
    now: float,
    state: Callable[[], tuple[int, Mapping[str, Any]]],
    must: bool = False,
  ) -> None:
    """Writes the state if that is due, or on disk in any case if it must be.

    Each report survives the process. On disk, so that it survives the machine
    too, the state is put now and then: that takes milliseconds. `state` gives
    the number of the newest change, and the state.
    """
    if not self._saving.acquire(blocking=must):
      return
    try:
      if not must and now - self._saved < _PERIOD_S:
        return
      number, values = state()
      sync = must or now - self._synced >= _SYNC_PERIOD_S
      self._saved = now
      if sync:
        self._synced = now
      whole = {**values, _NUMBER: number}
      self._try(
        self._state, lambda: checkpoints.write_state(self._state, whole, sync)
      )
      if self._state in self._errors:
        return
      with self._writing:
        self._lines = [x for x in self._lines if x[0] > number]
        self._rewrite()
    finally:
      self._saving.release()

  def close(self) -> None:
    with self._writing:
      if self._file is not None:
        self._file.close()
        self._file = None

  def _rewrite(self) -> None:
    """The journal anew, of what is newer than the state."""
    if self._file is not None:
      self._file.close()
      self._file = None

    def write() -> None:
      data = b''.join(line for _, line in self._lines)
      durable.replace(self._journal, lambda file: file.write(data), sync=False)
      self._file = io.FileIO(self._journal, 'ab')

    self._try(self._journal, write)

  def _try(self, path: pathlib.Path, write: Callable[[], Any]) -> None:
    try:
      write()
    except OSError as e:
      self._errors[path] = e
      if path == self._journal:
        self._next_try = time.monotonic() + _RETRY_S
        if self._file is not None:
          # It may end within a line.
          self._file.close()
          self._file = None
    else:
      self._errors.pop(path, None)


def counted(directory: pathlib.Path) -> dict[str, Any]:
  """The state of a counter and what came after it, also while one is running.

  Returns:
    The state, of which 'totals', 'node_totals' and 'elapsed_s' are with the
    entries of the journal; {} if nothing is counted.
  """
  state = checkpoints.read_state(directory / checkpoints.COUNTER)
  found = dict(state or {})
  totals = collections.Counter(found.get('totals', {}))
  nodes = {
    name: collections.Counter(counts)
    for name, counts in found.get('node_totals', {}).items()
  }
  for _, entry, _ in _newer(directory / JOURNAL, state):
    name, *_, counts, elapsed_s = entry  # services/counter.py writes them
    totals.update(counts)
    nodes.setdefault(name, collections.Counter()).update(counts)
    found |= {
      'totals': dict(totals), 'node_totals': nodes, 'elapsed_s': elapsed_s
    }  # fmt: skip
  return found


def _newer(
  journal: pathlib.Path, state: Mapping[str, Any] | None
) -> Iterator[tuple[int, list[Any], bytes]]:
  """(number, entry, line) of the entries that follow a state without a gap."""
  number = int((state or {}).get(_NUMBER, 0))
  try:
    lines = journal.read_bytes().split(b'\n')
  except FileNotFoundError:
    return
  for line in lines:
    found = _parse(line)
    if found is None:
      return
    if found[0] == number + 1:
      number += 1
      yield number, found[1:], line + b'\n'


def _write(file: io.FileIO, data: bytes) -> None:
  written = file.write(data)
  if written != len(data):  # what fitted
    file.write(data[written:])  # says why not all of it
    raise OSError(f'{written} of {len(data)} bytes were written')


def _parse(line: bytes) -> list[Any] | None:
  """The entry of a line; None if it is not whole."""
  checksum, _, text = line.partition(b' ')
  try:
    if int(checksum, 16) != zlib.crc32(text):
      return None
    return json.loads(text)
  except ValueError:
    return None
