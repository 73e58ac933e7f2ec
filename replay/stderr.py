"""Keeps notes of Reverb's C++ out of the standard error of this process."""

from collections.abc import Iterator
import contextlib
import logging
import os
import shutil
import subprocess

_NOTE = 'number of pending items is alarmingly high'
# grep ends where it cannot write (2; by a signal, more). On a disk that was
# full, what comes later has to be written, and a pipe that nobody reads would
# fail all who write to it. 0 and 1 are the end of the pipe.
_FILTER = 'while grep --line-buffered -v "$0"; [ $? -gt 1 ]; do sleep 0.1; done'

_logger = logging.getLogger(__name__)


# The process that filters, and the pipe to it.
_filter: tuple[subprocess.Popen, os.stat_result] | None = None


def drop_notes_of_writers() -> None:
  """Sends standard error through `grep -v`, for as long as this process lives.

  Reverb's C++ writes a line of 330 bytes for each 10 items that it sends while
  50 of them or more are unconfirmed, and has no setting for it: at 30,000 items
  per second that is a log of 1 MB/s. Its threads write when they like, so no
  redirection around a call would catch them. A thread of Python that filters
  would need the GIL for each line, and what a crash says last would be lost in
  its pipe. Another process outlives the crash, and ends with the pipe.
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
      stderr=subprocess.DEVNULL,  # what it cannot write is no news there
      # Ctrl-C in the terminal must not end it before this process.
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
  """Drops all of standard error; for a command whose other threads are idle."""
  kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  try:
    os.dup2(nothing, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nothing)
