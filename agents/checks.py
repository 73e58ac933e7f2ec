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


def annealing(config: Any, section: str) -> None:
  """Refuses an `anneal_after` that is not from 0 to below `anneal_updates`.

  Raises:
    ValueError: or if `anneal_updates` is neither None nor positive.
  """
  positive(config, section, ('anneal_updates',))
  after, end = config.anneal_after, config.anneal_updates
  if not 0 <= after < (math.inf if end is None else end):
    raise ValueError(
      f'{section}.anneal_after={after} must be at least 0 and below '
      f'{section}.anneal_updates={end}.'
    )
