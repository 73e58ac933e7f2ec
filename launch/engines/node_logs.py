"""Reads from a run's logs why a node ended, and where it hung."""

from collections.abc import Sequence
import contextlib
import itertools
import pathlib
import signal

_ERROR_LINES = 40
_LAST_LINES = 5
_OURS = 'launch/engines/child.py'  # in the path of a frame
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
    if code == 0:
      return _LEFT
    lines = since(self.paths[index], self._starts[index])
    lines = [line for line in lines if not line.startswith('--- ')]
    if code > 0:
      error = _last(lines, 'Traceback (most recent call last)')
      if len(error) > _ERROR_LINES:
        error[1 : 2 - _ERROR_LINES] = ['  ...']
      if not error and not last_words:
        error = [*lines[-_LAST_LINES:], f'exit code {code}']
      return '\n'.join(error) or last_words
    # faulthandler marks the thread that the signal came to, and prints its
    # innermost frame first.
    thread = _last(lines, 'Current thread')
    stack = itertools.takewhile(lambda s: s.strip() and _OURS not in s, thread)
    known = {one.value: one.name for one in signal.Signals}
    name = known.get(-code, f'signal {-code}')
    hint = (_OUT_OF_MEMORY if oom else _PERHAPS) if name == 'SIGKILL' else ''
    return '\n'.join([*[*stack][:_ERROR_LINES], f'killed by {name}{hint}'])


def since(path: pathlib.Path, start: int) -> list[str]:
  """The lines of a log from byte `start` on, at most the last 64 kB."""
  try:
    with path.open('rb') as log:
      log.seek(max(start, path.stat().st_size - (1 << 16)))
      return log.read().decode(errors='replace').splitlines()
  except OSError:
    return []


def _last(lines: list[str], mark: str) -> list[str]:
  """The lines from the last one on that begins with `mark`."""
  found = [i for i, line in enumerate(lines) if line.startswith(mark)]
  return lines[found[-1] :] if found else []
