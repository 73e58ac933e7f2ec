"""Settings: the fields of frozen dataclasses, from text and as text.

A run's settings are sections, such as `agent` and `run`; each is a dataclass
whose fields have types, defaults, and comments that say the unit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
import dataclasses
import difflib
import inspect
import io
import textwrap
import tokenize
import types
import typing
from typing import Any

_WIDTH = 80


class Unknown(ValueError):
  """There is no such setting.

  Attributes:
    setting: which, as section.name.
  """

  def __init__(self, setting: str, known: list[str]):
    super().__init__(f'There is no setting {setting!r}.{near(setting, known)}')
    self.setting = setting


def names(config_class: Any) -> list[str]:
  """The fields that are set, in their order."""
  return [
    field.name for field in dataclasses.fields(config_class) if field.init
  ]


def make(section: str, config_class: Any, values: Mapping[str, Any]) -> Any:
  """A section's config from values, of which JSON may have made lists.

  Raises:
    ValueError: a name is unknown or a value is refused, with the reason.
  """
  for name in values:
    if name not in names(config_class):
      raise Unknown(f'{section}.{name}', qualified(section, config_class))
  try:
    return config_class(
      **{
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
      }
    )
  except TypeError as e:
    raise ValueError(f'The section {section!r} cannot be: {e}.') from e


def qualified(section: str, config_class: Any) -> list[str]:
  return [f'{section}.{name}' for name in names(config_class)]


def near(word: str, known: list[str]) -> str:
  """' Did you mean ...?', or that --list-settings names them all."""
  # By the name alone first: a section in common makes no two names near.
  names_of = {one: one.rpartition('.')[2] for one in known}
  close = difflib.get_close_matches(
    word.rpartition('.')[2], names_of.values(), len(known) or 1, 0.6
  )
  found = difflib.get_close_matches(
    word, [one for one in known if names_of[one] in close], 1, 0.6
  )
  if found:
    return f' Did you mean "{found[0]}"?'
  return ' --list-settings shows all that there are.'


def parse(section: str, config_class: Any, name: str, text: str) -> Any:
  """The value of a field, from a command line.

  Raises:
    ValueError: the text is nothing that the field can be.
  """
  hint = typing.get_type_hints(config_class)[name]
  options = (
    typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union)
    else (hint,)
  )
  if text == 'None' and type(None) in options:
    return None
  for option in options:
    try:
      return _parsed(option, text)
    except (ValueError, SyntaxError, TypeError):
      continue
  wanted = ' or '.join(_named(option) for option in options)
  raise ValueError(
    f'{section}.{name}={text!r} is not {wanted}. Set --config.{section}.{name}.'
  )


def _parsed(option: Any, text: str) -> Any:
  if option is str:
    return text
  if option is bool:
    word = text.lower()
    if word not in ('true', 'false', '1', '0'):
      _refuse()
    return word in ('true', '1')
  if option is type(None):
    _refuse()
  if option is float:
    return float(text)
  value = ast.literal_eval(text)
  if typing.get_origin(option) is tuple:
    value = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    parts = typing.get_args(option)
    if parts[-1] is not Ellipsis and len(parts) != len(value):
      _refuse()
    return value
  if type(value) is not option:  # True is no number
    _refuse()
  return value


def _refuse() -> typing.NoReturn:
  raise ValueError


def _named(option: Any) -> str:
  return {
    int: 'a whole number',
    float: 'a number',
    bool: 'True or False',
    type(None): 'None',
  }.get(option, str(option))


def describe(config_class: Any) -> dict[str, str]:
  """Each field's comment: that beside it, or on the lines above it."""
  found: dict[str, str] = {}
  for base in reversed(inspect.getmro(config_class)):
    if dataclasses.is_dataclass(base):
      found.update(_comments(base))
  return {name: found.get(name, '') for name in names(config_class)}


def _comments(config_class: Any) -> Iterator[tuple[str, str]]:
  try:
    source = textwrap.dedent(inspect.getsource(config_class))
  except OSError:  # made where no file is
    return
  comments, alone = {}, set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      line = token.start[0]
      comments[line] = token.string.lstrip('# ')
      if not token.line[: token.start[1]].strip():
        alone.add(line)
  (body,) = ast.parse(source).body
  assert isinstance(body, ast.ClassDef)
  for node in body.body:
    if not (
      isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ):
      continue
    first, last = node.lineno, node.end_lineno or node.lineno
    above = first
    while above - 1 in alone:
      above -= 1
    words = [comments[i] for i in range(above, last + 1) if i in comments]
    yield node.target.id, ' '.join(words)


def listing(sections: Mapping[str, Any]) -> str:
  """All settings of a run: name, value, type and comment, section by section.

  Args:
    sections: name to its config, or to a plain value.
  """
  lines = []
  for section, config in sections.items():
    if not dataclasses.is_dataclass(config):
      lines += [f'--config.{section}={config}', '']
      continue
    kinds = {field.name: field.type for field in dataclasses.fields(config)}
    for name, comment in describe(type(config)).items():
      value = getattr(config, name)
      lines.append(f'--config.{section}.{name}={value}')
      text = f'{kinds[name]}' + (f'; {comment}' if comment else '')
      lines += textwrap.wrap(
        text, _WIDTH, initial_indent='    ', subsequent_indent='    '
      )
    lines.append('')
  return '\n'.join(lines).rstrip()
