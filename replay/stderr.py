"""Keeps notes of Reverb's C++ out of the standard error of this process."""

from collections.abc import Iterator
import contextlib
import logging
import os
import subprocess

_NOTE = 'number of pending items is alarmingly high'

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
    grep = subprocess.Popen(
      ['grep', '--line-buffered', '-v', _NOTE],
      stdin=subprocess.PIPE,
      stdout=2,
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
