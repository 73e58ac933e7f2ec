"""What a caller gives `train`, checked and as a helper process takes it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
import inspect
import os
import pathlib
import re
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
# Flags of the command that are arguments here, with another name or the same.
_FLAGS = {
  **{flag: flag for flag in ('topology', 'run_dir', 'ray_address', 'cluster')},
  'lp_launch_type': 'engine',
  'sink': 'sinks',
}
_FLAG = re.compile(
  rf'--(?:config\.(?:(\w+)\.)?(\w+)|({"|".join(_FLAGS)})\b)(?:=(\S*[\w/)]))?'
)


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


def as_text(config: Mapping[str, Any]) -> dict[str, Any]:
  """Settings as text, as a command line has them.

  Raises:
    ValueError: an argument by the name that another library gives it.
  """
  for name in config:
    if name in _OTHER_NAMES:
      raise ValueError(
        f'There is no {name}=: here it is {_OTHER_NAMES[name]}=.'
      )
  return {
    name: as_text(value) if isinstance(value, Mapping) else _text(value)
    for name, value in config.items()
  }


def _text(value: Any) -> str:
  if getattr(value, 'ndim', 0) and hasattr(value, 'tolist'):
    value = value.tolist()  # an array, whose own text has no commas
  if isinstance(value, (list, tuple)):
    # NumPy's numbers say of themselves, in here, that they are np.int64(8).
    value = tuple(
      p.item() if hasattr(p, 'item') and not getattr(p, 'ndim', 0) else p
      for p in value
    )
  return str(value)


def written(
  call: str, first: Sequence[Any], settings: Mapping[str, Any], **more: Any
) -> str:
  """A call of this library as a line of Python, which does the same again.

  Args:
    call: what is called, such as 'train'.
    first: arguments without a name. What is None or empty is left out, as in
      `more`.
    settings: from `as_text`.
    **more: arguments by name.

  Returns:
    One line. Objects of the caller's have their names in it.
  """
  words = [_name(value) for value in first if value]
  words += [f'{name}={_name(value)}' for name, value in more.items() if value]
  plain = {key: text for key, text in settings.items() if key.isidentifier()}
  words += [f'{key}={_literal(text)}' for key, text in plain.items()]
  others = {k: text for k, text in settings.items() if k not in plain}
  if others:
    words.append(f'**{_literal(others)}')
  return f'murmuration.{call}({", ".join(words)})'


def in_python(sentence: str) -> str:
  """A sentence of the command's, with arguments in the place of its flags."""

  def argument(found: re.Match[str]) -> str:
    section, setting, flag, value = found.groups()
    name = setting or _FLAGS[flag]
    is_argument = bool(section) and name in objects.KEYS.values()  # of `train`
    if value is None:
      # Sections beside the agent's may have names that it has too.
      clear = section in (None, 'agent') and not is_argument
      return name if clear else f'{section}.{name}'
    if is_argument:
      return f'{section}={{{name!r}: {_literal(value)}}}'
    return f'{name}={_literal(value)}'

  for flag, here in (
    (r'--resume=(\S*[\w/])', r"mm.load('\1').resume()"),
    ('--resume', 'resume'),
    ('--list-settings', '`murmuration run AGENT --list-settings`'),
  ):
    sentence = re.sub(flag, here, sentence)
  return _FLAG.sub(argument, sentence)


def _name(value: Any) -> str:
  place, _, name = str(value).partition(':')
  return name if place == objects.GIVEN else repr(value)


def _literal(value: Any) -> str:
  """What `as_text` makes this of, as Python has it."""
  if isinstance(value, Mapping):
    pairs = (f'{name!r}: {_literal(text)}' for name, text in value.items())
    return f'{{{", ".join(pairs)}}}'
  try:
    same = str(ast.literal_eval(value)) == value
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    same = False
  return value if same else repr(value)


def absolute(path: str | os.PathLike[str] | None) -> pathlib.Path | None:
  return None if path is None else pathlib.Path(path).absolute()
