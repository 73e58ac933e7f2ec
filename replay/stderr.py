"""Keeps log lines of Reverb's C++ out of the standard error of this process."""

from collections.abc import Iterator
import contextlib
import logging
import os
import shutil
import subprocess

_NOTE = 'number of pending items is alarmingly high'
# grep exits with 2 if it cannot write, and with more after a signal. It is then
# restarted: a full disk may have space again, and without a reader every write
# to the pipe would fail. 0 and 1 mean that the pipe was closed.
_FILTER = 'while grep --line-buffered -v "$0"; [ $? -gt 1 ]; do sleep 0.1; done'

_logger = logging.getLogger(__name__)


# The filter process, and the pipe to it.
_filter: tuple[subprocess.Popen, os.stat_result] | None = None


def drop_notes_of_writers() -> None:
  """Filters standard error through `grep -v` while this process lives.

  Reverb's C++ writes a line of 330 bytes for every 10 items that it sends while
  50 or more are unconfirmed, and has no setting for it: at 30,000 items per
  second, a log of 1 MB/s. Its threads write at any time, so redirecting stderr
  around a call would not be enough. A filter thread in Python would need the
  GIL for each line, and the last output before a crash would be lost in its
  pipe. A separate process outlives the crash, and ends with the pipe.
  """
  global _filter
  if _filter and os.path.samestat(os.fstat(2), _filter[1]):
    return
  try:
    if shutil.which('grep') is None:
      raise FileNotFoundError('there is no grep')
    grep = subprocess.Popen(
      ['sh', '-c', _FILTER, _NOTE],
      stdin=subprocess.PIPE,
      stdout=2,
      stderr=subprocess.DEVNULL,  # its own write errors do not matter
      # Ctrl-C in the terminal must not end the filter before this process.
      start_new_session=True,
    )
  except OSError as e:
    _logger.info('Reverb logs each 10 items in flight beyond 50: %s', e)
    return
  assert grep.stdin is not None
  os.dup2(grep.stdin.fileno(), 2)
  grep.stdin.close()
  _filter = grep, os.fstat(2)


@contextlib.contextmanager
def muted() -> Iterator[None]:
  """Drops all standard error; use it only while other threads are idle."""
  kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nothing, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nothing)
