"""What each command does first: imports next to nothing, so that it comes soon.

A file that is run calls `begin` before imports that take seconds, and `leave`
with its exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
from typing import Any, NoReturn

INTERRUPTED = 130  # by Ctrl-C: as in a shell, 128 and the signal's number


def begin() -> None:
  """Makes a process fit for a command, before imports that take seconds.

  Sets up its streams (`streams`). Ctrl-C ends the process with a word, until
  `raise_interrupts`: in an import it is a trace, or lost where a library
  catches all that is raised. A Python without the packages that are imported
  says so in a sentence.
  """
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)
  sys.excepthook = _say_what_is_missing
  streams()
  # Inherited from who ignores it, no end of a child would be heard of.
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def streams(encoding: str | None = None) -> None:
  """Has a process print whatever comes, wherever its output goes.

  A stream that is closed goes nowhere, and a character that one cannot show is
  replaced.

  Args:
    encoding: of what is printed; None: that of the locale.
  """
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      # Else the next file that is opened would get what is printed.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if getattr(sys, name) is None:
      opened = open(number, 'w' if number else 'r', closefd=False)
      setattr(sys, name, opened)
      setattr(sys, f'__{name}__', opened)
  for stream, errors in (
    (sys.stdout, 'replace'),
    (sys.stderr, 'backslashreplace'),
  ):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(encoding=encoding, errors=errors)


def raise_interrupts() -> None:
  """From here on Ctrl-C raises KeyboardInterrupt: there is work to finish."""
  if signal.getsignal(signal.SIGINT) is _interrupted:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(code: int) -> NoReturn:
  """Ends the process with this exit code, whenever Ctrl-C comes.

  Threads that are still at work are waited for, which Ctrl-C breaks off.
  """
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):  # as Python does at its end
      stream.flush()
  if before != signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *unused: os._exit(code))
    # After the threads nothing is waited for; what is cleaned up, is.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
  sys.exit(code)


def _interrupted(*unused: Any) -> NoReturn:
  # Not `print`: this may come in the middle of one.
  os.write(2, b'interrupted\n')
  os._exit(INTERRUPTED)


def _say_what_is_missing(kind: Any, error: Any, trace: Any) -> None:
  """The hook for what nobody caught."""
  root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
  name = getattr(error, 'name', None) or ''
  if not issubclass(kind, ModuleNotFoundError) or not name or '.' in name:
    sys.__excepthook__(kind, error, trace)
    return
  import shlex

  fix = '`murmuration doctor` says what is missing.'
  if not sys.argv[0].startswith('murmuration '):  # a file of a clone
    python = os.path.join(root, '.venv', 'bin', 'python')
    fix = (
      f'`make environment` in {root} installs it, in a Python of its own: '
      f'{shlex.join([python, *sys.argv])}'
    )
  print(f'error: {sys.executable} has no {name}. {fix}', file=sys.stderr)
