"""What a caller gives `train`, checked before a process is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import numbers
from typing import Any

from murmuration import objects


def whole(name: str, value: Any, low: int = 1) -> int:
  """1e5 as 100000.

  Raises:
    ValueError: it is not a whole number, or is below `low`.
  """
  # Neither '5' nor True counts; NumPy's numbers do.
  number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if not (number and float(value).is_integer() and value >= low):
    raise ValueError(
      f'{name}={value!r} has to be a whole number, at least {low}.'
    )
  return int(value)


def whole_or_none(name: str, value: Any) -> int | None:
  return None if value is None else whole(name, value)


def check_callbacks(callbacks: Mapping[str, Any]) -> None:
  """Refuses what a run could not call, which it would find out much later."""
  for name, callback in callbacks.items():
    if not (callback is None or callable(callback)):
      raise ValueError(
        f'{name}={callback!r} cannot be called. Give a function that takes the '
        f'run and what has come, such as {name}=lambda run, news: print(news).'
      )


def plain(value: Any) -> Any:
  """A setting as Python's own numbers, lists and dicts."""
  if isinstance(value, Mapping):
    return {str(name): plain(one) for name, one in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(one) for one in value]
  return value.tolist() if hasattr(value, 'tolist') else value  # NumPy's


def written(
  call: str, first: Sequence[Any], settings: Mapping[str, Any], **more: Any
) -> str:
  """A call of this library as a line of Python, which does the same again.

  Args:
    call: what is called, such as 'train'.
    first: arguments without a name. What is None or empty is left out, as in
      `more`.
    settings: from `plain`.
    **more: arguments by name.

  Returns:
    One line. Objects of the caller's have their names in it.
  """
  words = [_name(value) for value in first if value]
  words += [f'{name}={_name(value)}' for name, value in more.items() if value]
  words += [f'{k}={v!r}' for k, v in settings.items() if k.isidentifier()]
  others = {k: v for k, v in settings.items() if not k.isidentifier()}
  if others:
    words.append(f'**{others!r}')
  return f'murmuration.{call}({", ".join(words)})'


def _name(value: Any) -> str:
  place, _, name = str(value).partition(':')
  return name if place == objects.GIVEN else repr(value)
