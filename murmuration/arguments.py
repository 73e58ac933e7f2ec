"""What a caller gives `train`, checked before a process is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import inspect
from typing import Any

from murmuration import objects

# What other libraries call the arguments of `train`.
_OTHER_NAMES = {
  'total_timesteps': 'steps',
  'timesteps': 'steps',
  'env': 'environment',
  'env_id': 'environment',
  'verbose': 'progress',
  'progress_bar': 'progress',
  'log_dir': 'run_dir',
  'tensorboard_log': 'run_dir',
  'callback': 'on_evaluation',
}


def whole(name: str, value: Any, low: int = 1) -> int:
  """1e5 as 100000.

  Raises:
    ValueError: no whole number from `low` up.
  """
  try:
    found = int(value)
    # '5' is not 5, and a truth is no number.
    fits = bool(found == value) and found >= low and _is_number(value)
  except (TypeError, ValueError, OverflowError):  # text, None, infinity
    fits = False
  if not fits:
    raise ValueError(
      f'{name}={value!r} is no whole number from {low} up. Give one.'
    )
  return found


def _is_number(value: Any) -> bool:
  return type(value).__name__ not in ('bool', 'bool_')  # Python's and NumPy's


def whole_or_none(name: str, value: Any) -> int | None:
  return None if value is None else whole(name, value)


def check_callbacks(callbacks: Mapping[str, Any]) -> None:
  """Refuses what a run could not call, which it would find out much later."""
  for name, callback in callbacks.items():
    why = '' if callback is None else _unfit(callback)
    if why:
      raise ValueError(
        f'{name}={callback!r} {why}. Give a function that takes the run and '
        f'what has come, such as {name}=lambda run, news: print(news).'
      )


def _unfit(callback: Any) -> str:
  """Why it cannot be called with a run and what has come; '' if it can."""
  if not callable(callback):
    return 'cannot be called'
  try:
    signature = inspect.signature(callback, follow_wrapped=False)
  except (TypeError, ValueError):  # of some in C, nobody knows
    return ''
  try:
    signature.bind('run', 'news')
  except TypeError:
    return f'takes {signature}'
  return ''


def plain(value: Any) -> Any:
  """A setting as Python's own numbers, lists and dicts."""
  if isinstance(value, Mapping):
    return {str(name): plain(one) for name, one in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(one) for one in value]
  return value.tolist() if hasattr(value, 'tolist') else value  # NumPy's


def check_names(config: Mapping[str, Any]) -> None:
  """Refuses an argument by the name that another library gives it."""
  for name in config:
    if name in _OTHER_NAMES:
      raise ValueError(
        f'There is no {name}=: here it is {_OTHER_NAMES[name]}=.'
      )


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
