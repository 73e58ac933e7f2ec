"""What the commands have in common: flags, and one sentence for what is wrong.

Light to import, for those that need nothing that takes seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import difflib
import os
import pathlib
import shlex
import signal
import sys
import threading
from typing import Any, NoReturn

from murmuration.run_records import first

# Exit codes; as in a shell, 128 and the signal's number are that signal's.
FINISHED = 0
FAILED = 1
USAGE = 2  # the command cannot work
INTERRUPTED = first.INTERRUPTED
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


class Interrupts:
  """Ctrl-C around a run that takes it itself while it runs.

  A context. It raises KeyboardInterrupt before the run, and then in what is
  waited for (`raising`): else one that comes just after the end of the run
  would take its result away.
  """

  def __init__(self):
    self._raises = True
    self._before: Any = None

  def __enter__(self) -> Interrupts:
    # Not where it is ignored; and only a main thread may.
    if (
      threading.current_thread() is threading.main_thread()
      and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
      self._before = signal.signal(signal.SIGINT, self._take)
    return self

  def __exit__(self, *unused: Any) -> None:
    if self._before is not None:
      signal.signal(signal.SIGINT, self._before)

  def hold(self) -> None:
    """From here on Ctrl-C does nothing, while this is open."""
    self._raises = False

  @contextlib.contextmanager
  def raising(self) -> Iterator[None]:
    """Within this it raises."""
    self._raises = True
    try:
      yield
    finally:
      self._raises = False

  def _take(self, *unused: Any) -> None:
    if self._raises:
      raise KeyboardInterrupt


def show(text: str) -> int:
  """Prints what a command was asked for; its exit code, also after `| head`."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # Python would try the rest again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return 0


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


def python() -> pathlib.Path:
  """This interpreter, which works without an activated environment."""
  return pathlib.Path(os.path.relpath(sys.executable))


def called(name: str) -> str:
  """How a command of launch/ is called from here, for a shell.

  As the one that is installed beside this interpreter, else as its script.
  """
  command = python().with_name('murmuration')
  if command.exists():
    return f'{shlex.quote(str(command))} {name}'
  script = pathlib.Path(__file__).resolve().parents[1] / f'launch/{name}.py'
  return shlex.join([str(python()), os.path.relpath(script)])


def refuse(error: BaseException) -> int:
  """Says why a command cannot work; returns the exit code for it."""
  print(f'error: {str(error).strip()}', file=sys.stderr)
  return USAGE
