"""Names from a user: of this project, or `module:Name` for the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import difflib
import importlib
import os
import pathlib
import re
import types
from typing import Any, NoReturn

OWN = (
  'One of your own is named module:Name, with the module where you are or on '
  'PYTHONPATH'
)


def unknown(
  what: str, name: str, known: Iterable[str], besides: str = ''
) -> NoReturn:
  """Refuses a name, with the most similar and all known names.

  `besides` is a last sentence without its period.

  Raises:
    ValueError: always.
  """
  known = list(known)
  by_lower = {one.lower(): one for one in known}
  near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
  raise ValueError(
    f'There is no {what} {name!r}.'
    + (f' Did you mean {by_lower[near[0]]!r}?' if near else '')
    + (f' There are {", ".join(known)}.' if known else '')
    + (f' {besides}.' if besides else '')
  )


def require(
  what: str, name: str, known: Iterable[str], besides: str = ''
) -> None:
  """Refuses a name that is not known; see `unknown`."""
  if name not in known:
    unknown(what, name, known, besides)


def own(what: str, name: str, fits: Callable[[Any], bool]) -> Any:
  """Returns what `module:Name` names; None if it is no such name.

  Args:
    what: it has to be.
    name: of it.
    fits: whether something is of that kind. Not asked of what is returned, but
      of what the module has where it has no such name.

  Raises:
    ValueError: the module cannot be imported, or has no such name, or a name
      is written as a path or with a dot.
  """
  module, colon, attribute = name.partition(':')
  if module.endswith('.py') or (colon and os.sep in module):
    here = f'{pathlib.PurePath(module).stem}:{attribute or "Name"}'
    raise ValueError(
      f"{name}: give a module's name, not a path: {here}, where its directory "
      'is the working directory or on PYTHONPATH.'
    )
  if re.fullmatch(r'\w+(\.\w+)+', name):
    meant = ':'.join(name.rsplit('.', 1))
    raise ValueError(
      f'There is no {what} {name!r}. Did you mean {meant!r}? {OWN}.'
    )
  if not re.fullmatch(r'[\w.]+:\w+', name):
    return None
  for path in (module, f'{module}.{attribute}'):
    try:
      found = importlib.import_module(path)
    except ModuleNotFoundError as e:
      # Only a missing `path` may be ignored, not a module that it imports.
      if e.name is None or not f'{path}.'.startswith(f'{e.name}.'):
        raise ValueError(f'{name} cannot be imported: {e}.') from e
      if path != module:
        break
      if what == 'agent' and attribute.islower():
        return None  # a preset, of an agent whose name is mistyped
      file = f'{module.replace(".", "/")}.py'
      raise ValueError(
        f'{what} {name!r} needs the module {module!r}, which does not import: '
        f'{e}. Change to the directory that has {file} (a run was started '
        'there), or put it on PYTHONPATH, or install its package.'
      ) from e
    except (Exception, SystemExit) as e:  # a user's module may raise anything
      # A SyntaxError's message has the file and line.
      raise ValueError(
        f'{name} cannot be imported: {type(e).__name__}: {e}. '
        f'`python -c "import {path}"` shows where.'
      ) from e
    if path != module:
      return found
    if hasattr(found, attribute):
      return getattr(found, attribute)
  known = [
    f'{module}:{word}'
    for word, found in vars(importlib.import_module(module)).items()
    if not (word.startswith('_') or isinstance(found, types.ModuleType))
    # Not what it imports, such as the class that its own are made of.
    and (
      not isinstance(found, type)
      or f'{found.__module__}.'.startswith(f'{module}.')
    )
    and fits(found)
  ]
  return unknown(what, name, known, '' if known else f'{module} has none')


def kind(found: Any) -> str:
  return f'a {type(found).__name__}'
