"""What the commands have in common: flags, and one sentence for what is wrong.

Light to import, for those that need nothing that takes seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import difflib
import io
import os
import shlex
import signal
import sys
from typing import Any, NoReturn

# Exit codes; as in a shell, 128 and the signal's number are that signal's.
USAGE = 2  # the command cannot work
INTERRUPTED = 130  # by Ctrl-C
TERMINATED = 143
# Ended early by the user or the system.
BROKEN_OFF = (INTERRUPTED, TERMINATED)


class Parser(argparse.ArgumentParser):
  """Says what is wrong in one sentence; shows examples as they are.

  Attributes:
    other_names: of flags, as others call them, for `Did you mean`.
  """

  other_names: Mapping[str, str] = {}

  def __init__(self, description: str | None, **options: Any):
    super().__init__(
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
      **options,
    )

  def error(self, message: str) -> NoReturn:
    more = ' See --help.' if message.endswith('?') else '; see --help.'
    raise ValueError(message + more)

  def parse(self, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; ValueError for one that is not known, with a near one."""
    found, rest = self.parse_known_args(argv)
    if rest:
      word = rest[0].partition('=')[0]
      if not word.startswith('-'):
        self.error(f'{word!r} is one word too many')
      known = [*self._option_string_actions]
      name = word.strip('-').replace('-', '_')
      near = [self.other_names[name]] if name in self.other_names else []
      near = near or difflib.get_close_matches(word, known, 1)
      near = near or [one for one in known if len(name) > 2 and name in one]
      self.error(
        f'there is no flag {word}'
        + (f'. Did you mean {near[0]}?' if near else '')
      )
    return found


def at_least(least: int) -> Callable[[str], int]:
  """What a flag's text is made a whole number with."""

  def parse(text: str) -> int:
    number = int(text)
    if number < least:
      raise argparse.ArgumentTypeError(f'{number} is below {least}')
    return number

  parse.__name__ = 'whole number'  # of argparse's message
  return parse


def begin() -> None:
  """Makes a process fit for a command, before imports that take seconds.

  Streams that are closed go nowhere, and characters that one cannot show are
  replaced. Ctrl-C ends the process with a word, until `raise_interrupts`: in an
  import it is a trace, or lost where a library catches all that is raised.
  """
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      # Else the next file that is opened would get what is printed.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if getattr(sys, name) is None:
      stream = open(number, 'w' if number else 'r', closefd=False)
      setattr(sys, name, stream)
      setattr(sys, f'__{name}__', stream)
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='replace')
  # Inherited from who ignores it, no end of a child would be heard of.
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)


def raise_interrupts() -> None:
  """From here on Ctrl-C raises KeyboardInterrupt: there is work to finish."""
  if signal.getsignal(signal.SIGINT) is _interrupted:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def show(text: str) -> int:
  """Prints what a command was asked for; its exit code, also after `| head`."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # Python would try the rest again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return 0


def _interrupted(*unused: Any) -> NoReturn:
  # Not `print`: this may come in the middle of one.
  os.write(2, b'interrupted\n')
  os._exit(INTERRUPTED)


def here() -> str:
  """The working directory; ValueError if it has been removed."""
  try:
    return os.getcwd()
  except FileNotFoundError as e:
    raise ValueError(
      'the working directory is not there any more. Change to one that is.'
    ) from e


def line() -> str:
  """The command line of this process, for a shell."""
  name, *words = sys.argv
  # Of the library's command it is two words: 'murmuration run'.
  program = name.split() if name.startswith('murmuration ') else [name]
  return shlex.join([*program, *words])


def refuse(error: BaseException) -> int:
  """Says why a command cannot work; returns the exit code for it."""
  print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
  return USAGE
