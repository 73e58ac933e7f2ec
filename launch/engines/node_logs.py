"""The logs of a run's nodes: why a node ended, and where it hung."""

from collections.abc import Callable, Sequence
import contextlib
import pathlib
import signal
import time

_ERROR_LINES = 40
_LAST_LINES = 5
_DUMP_S = 0.5  # for a node to write its stacks, at most
_LEFT = (
  'it left with exit code 0 in the middle of its work: something in it called '
  'os._exit(0), perhaps its environment. A node whose work is done returns.'
)


class Logs:
  """One file per node, to which each of its lives appends."""

  def __init__(self, paths: Sequence[pathlib.Path]):
    self.paths = list(paths)
    self._starts = [0] * len(self.paths)

  def begins(self, index: int) -> None:
    """A node's next life begins."""
    with contextlib.suppress(FileNotFoundError):
      self._starts[index] = self.paths[index].stat().st_size

  def error(self, index: int, code: int, last_words: str) -> str:
    """Why a node's life ended.

    Args:
      index: of the node.
      code: its exit code; below 0 the signal that ended it.
      last_words: what a node that could not write its log said of its end.
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
    name = signal.Signals(-code).name
    hint = ' (out of memory? see `dmesg`)' if name == 'SIGKILL' else ''
    where = _last(lines, 'Fatal Python error')
    return f'{where}\nkilled by {name}{hint}'.lstrip()

  def stacks(
    self, indices: Sequence[int], dump: Callable[[int], None]
  ) -> list[str]:
    """Where nodes are: what each writes to its log when `dump` asks it to."""
    paths = [self.paths[index] for index in indices]
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
    for index in indices:
      dump(index)
    _wait_until_written(paths, sizes)
    return [
      '\n'.join(since(path, size)[-_ERROR_LINES:])
      for path, size in zip(paths, sizes, strict=True)
    ]


def _wait_until_written(
  paths: Sequence[pathlib.Path], sizes: Sequence[int]
) -> None:
  """Until each file has grown and grows no more, or for `_DUMP_S`."""
  until, before = time.monotonic() + _DUMP_S, list(sizes)
  while time.monotonic() < until:
    time.sleep(_DUMP_S / 10)
    now = [path.stat().st_size if path.exists() else 0 for path in paths]
    if now == before and all(a > b for a, b in zip(now, sizes, strict=True)):
      return
    before = now


def since(path: pathlib.Path, start: int) -> list[str]:
  """The lines of a log from some place on, the last 64 kB of them."""
  try:
    with path.open('rb') as log:
      log.seek(max(start, path.stat().st_size - (1 << 16)))
      return log.read().decode(errors='replace').splitlines()
  except OSError:
    return []


def _last(lines: list[str], mark: str) -> str:
  """The lines from the last mark on; without the middle if they are many."""
  for i in range(len(lines) - 1, -1, -1):
    if lines[i].startswith(mark):
      lines = lines[i:]
      if len(lines) > _ERROR_LINES:
        lines = [lines[0], '  ...', *lines[2 - _ERROR_LINES :]]
      return '\n'.join(lines)
  return ''
