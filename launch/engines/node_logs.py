"""Reads from a run's logs why a node ended, and where it hung."""

from collections.abc import Sequence
import contextlib
import pathlib
import signal

_ERROR_LINES = 40
_LAST_LINES = 5
_FATAL = 'Fatal Python error'
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
    return '\n'.join([*_fatal(lines), f'killed by {name}{hint}'])


def since(path: pathlib.Path, start: int) -> list[str]:
  """The lines of a log from byte `start` on, at most the last 64 kB."""
  try:
    with path.open('rb') as log:
      log.seek(max(start, path.stat().st_size - (1 << 16)))
      return log.read().decode(errors='replace').splitlines()
  except OSError:
    return []


def _fatal(lines: list[str]) -> list[str]:
  """What faulthandler has written, as far as it says where a node was.

  Of stacks that are too long that is the thread that the signal came to. Each
  has its innermost frame first.
  """
  start = max(
    (i for i, s in enumerate(lines) if s.startswith(_FATAL)), default=-1
  )
  if start < 0:
    return []
  lines = lines[start:]
  ends = [i for i, line in enumerate(lines) if line.startswith('Extension mod')]
  lines = _without_ours(lines[: ends[0]] if ends else lines)
  if len(lines) > _ERROR_LINES:
    begins = [i for i, line in enumerate(lines) if line.startswith('Current')]
    lines = lines[begins[0] if begins else 0 :][:_ERROR_LINES]
  return lines


def _without_ours(lines: list[str]) -> list[str]:
  """Leaves out the frames that led to the node's code, which come after it."""
  kept, ours = list[str](), False
  for line in lines:
    ours = line.startswith('  File') and (ours or _OURS in line)
    if not ours:
      kept.append(line)
  return kept


def _last(lines: list[str], mark: str) -> str:
  """The lines from the last `mark` on, shortened in the middle; '' if none."""
  for i in range(len(lines) - 1, -1, -1):
    if lines[i].startswith(mark):
      lines = lines[i:]
      if len(lines) > _ERROR_LINES:
        lines = [lines[0], '  ...', *lines[2 - _ERROR_LINES :]]
      return '\n'.join(lines)
  return ''
