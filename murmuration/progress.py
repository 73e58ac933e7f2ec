"""A bar of how far a run is, for terminals and notebooks."""

from __future__ import annotations

import sys
from typing import Any

_CELLS = 24


class Bar:
  """One line that is written over."""

  def __init__(self, shown: bool | None = None):
    """Makes a bar.

    Args:
      shown: None: where somebody watches, in a terminal or a notebook.
    """
    # ipykernel's stream is no terminal, and shows a line that is written over.
    notebook = 'ipykernel' in sys.modules
    self._stream = sys.stdout if notebook else sys.stderr
    try:
      watched = notebook or self._stream.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
      watched = False
    self._shown = watched if shown is None else shown
    self._return: float | None = None
    self._length = 0

  def show(self, kind: str, content: dict[str, Any]) -> None:
    """Takes a tick or an evaluation, as callbacks do."""
    if kind == 'evaluation':
      self._return = content.get('return_mean')
      return
    if not self._shown:
      return
    share = min(content['steps'] / max(content['budget'], 1), 1.0)
    done = int(share * _CELLS)
    rate = content['steps'] / max(content['elapsed_s'], 1e-9)
    line = (
      f'[{"#" * done}{"." * (_CELLS - done)}] {share:4.0%}  '
      f'{content["steps"]:,} of {content["budget"]:,} steps, {rate:,.0f}/s'
    )
    if self._return is not None:
      line += f', return {self._return:.1f}'
    self._write(f'\r{line.ljust(self._length)}')
    self._length = len(line)

  def say(self, line: str) -> None:
    """A line above the bar, whether that is shown or not."""
    self._write(
      f'\r{line.ljust(self._length)}\n' if self._length else f'{line}\n'
    )
    self._length = 0

  def close(self) -> None:
    if self._length:
      self._write('\n')
    self._length = 0

  def _write(self, text: str) -> None:
    try:
      self._stream.write(text)
      self._stream.flush()
    except (AttributeError, OSError, ValueError):
      self._shown = False  # nobody can see it, and the run goes on
