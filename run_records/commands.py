"""What the commands have in common: flags, and one sentence for what is wrong.

Light to import, for those that need nothing that takes seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import difflib
import sys
from typing import Any, NoReturn

USAGE = 2  # exit code of a command that cannot work


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
    """The arguments.

    Raises:
      ValueError: one is not known; a near one is named.
    """
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


def refuse(error: BaseException) -> int:
  """Says why a command cannot work; returns the exit code for it."""
  print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
  return USAGE
