"""Checks of config numbers, worded alike: what came, what is needed."""

from __future__ import annotations

from collections.abc import Iterable
import math
from typing import Any


def whole(config: Any, section: str, names: Iterable[str]) -> None:
  """Refuses fields that are not whole numbers of at least 1.

  Args:
    config: a dataclass.
    section: its section on the command line, for the message.
    names: fields to check.

  Raises:
    ValueError: names the first wrong field and its flag.
  """
  for name in names:
    number = getattr(config, name)
    if not math.isfinite(number) or number != int(number) or number < 1:
      raise ValueError(
        f'{section}.{name}={number} must be a whole number of at least 1. '
        f'Set --config.{section}.{name}.'
      )


def positive(config: Any, section: str, names: Iterable[str]) -> None:
  """Refuses fields that are neither None nor finite and above 0.

  Raises:
    ValueError: names the first wrong field and its flag.
  """
  for name in names:
    number = getattr(config, name)
    if number is not None and not (math.isfinite(number) and number > 0):
      raise ValueError(
        f'{section}.{name}={number} must be a positive number. '
        f'Set --config.{section}.{name}.'
      )
