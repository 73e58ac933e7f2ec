"""What engines say in the terminal.

A run goes on if nobody reads it any more, as after `... | head` or a terminal
that was closed.
"""

import contextlib
import sys
from typing import TextIO


def say(words: str) -> None:
  """Prints a line."""
  _print(words, sys.stdout)


def warn(words: str, end: str = '\n') -> None:
  """Prints a line where errors go."""
  _print(words, sys.stderr, end)


def _print(words: str, where: TextIO, end: str = '\n') -> None:
  with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
    print(words, file=where, end=end, flush=True)
