"""Reads from a run's logs why a node ended and where it hung."""

from collections.abc import Callable, Sequence
import contextlib
import pathlib
import signal
import time

_ERROR_LINES = 40
_LAST_LINES = 5
_DUMP_S = 2.0  # wait for a node to write its stacks, at most
_QUIET_S = 0.2  # a log that has not grown for so long has all of them
_LEFT = (
  'it left with exit code 0 in the middle of its work: something in it called '
  'os._exit(0), perhaps its environment. A node whose work is done returns.'
)
_PERHAPS = ' (out of memory? see `dmesg`)'
_OUT_OF_MEMORY = (
  ': its host, or a container on it, has just run out of memory (see `dmesg`). '
  'Place fewer nodes or environments there, or lower what replay holds'
)


class Logs:
  """One file per node, to which each start of the node appends."""

  def __init__(self, paths: Sequence[pathlib.Path]):
    self.paths = list(paths)
    self._starts = [0] * len(self.paths)

  def begins(self, index: int) -> None:
    """Notes where the output of a node's next start begins."""
    with contextlib.suppress(OSError):
      self._starts[index] = self.paths[index].stat().st_size

  def error(
    self, index: int, code: int, last_words: str, oom: bool = False
  ) -> str:
    """Returns why a node ended.

    A negative exit code is the signal that ended it. `last_words` is the error
    that it reported if it could not write its log, and `oom` whether the kernel
    has just killed for want of memory.
    """
    lines = since(self.paths[index], self._starts[index])
    lines = [line for line in lines if not line.startswith('--- ')]
    if code == 0:
      return _LEFT
    if code > 0:
      return (
        _last(lines, 'Traceback (most recent call last)')
        or last_words
        or '\n'.join([*lines[-_LAST_LINES:], f'exit code {code}'])
      )
    known = {one.value: one.name for one in signal.Signals}
    name = known.get(-code, f'signal {-code}')
    hint = (_OUT_OF_MEMORY if oom else _PERHAPS) if name == 'SIGKILL' else ''
    where = _last(lines, 'Fatal Python error')
    return f'{where}\nkilled by {name}{hint}'.lstrip()

  def stacks(
    self, indices: Sequence[int], dump: Callable[[int], None]
  ) -> list[str]:
    """The stacks that each node writes to its log when `dump` asks for them."""
    paths = [self.paths[index] for index in indices]
    sizes = [*map(_size, paths)]
    for index in indices:
      dump(index)
    _wait_until_written(paths, sizes)
    return [
      '\n'.join(_innermost(since(path, size)))
      for path, size in zip(paths, sizes, strict=True)
    ]


def _wait_until_written(
  paths: Sequence[pathlib.Path], sizes: Sequence[int]
) -> None:
  """Waits until every file has grown and stopped growing, or `_DUMP_S`."""
  until, before = time.monotonic() + _DUMP_S, list(sizes)
  while time.monotonic() < until:
    time.sleep(_QUIET_S)
    now = [*map(_size, paths)]
    if now == before and all(a > b for a, b in zip(now, sizes, strict=True)):
      return
    before = now


def _size(path: pathlib.Path) -> int:
  try:
    return path.stat().st_size
  except OSError:  # it is not there, or not to be read now
    return 0


def since(path: pathlib.Path, start: int) -> list[str]:
  """The lines of a log from byte `start` on, at most the last 64 kB."""
  try:
    with path.open('rb') as log:
      log.seek(max(start, path.stat().st_size - (1 << 16)))
      return log.read().decode(errors='replace').splitlines()
  except OSError:
    return []


def _innermost(lines: list[str]) -> list[str]:
  """Of stacks that are too long, what the main thread was in last.

  faulthandler writes the main thread last, and its innermost frame first.
  """
  if len(lines) <= _ERROR_LINES:
    return lines
  start = max(
    (i for i, line in enumerate(lines) if 'hread 0x' in line), default=0
  )
  return lines[start : start + _ERROR_LINES]


def _last(lines: list[str], mark: str) -> str:
  """The lines from the last `mark` on, shortened in the middle; '' if none."""
  for i in range(len(lines) - 1, -1, -1):
    if lines[i].startswith(mark):
      lines = lines[i:]
      if len(lines) > _ERROR_LINES:
        lines = [lines[0], '  ...', *lines[2 - _ERROR_LINES :]]
      return '\n'.join(lines)
  return ''
