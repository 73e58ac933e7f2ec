"""A run's settings, by tyro: from the command line, and as a list.

Settings come in sections, such as `agent` and `run`: frozen dataclasses whose
fields have bounds and comments (agents/settings.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import difflib
import io
import re
import textwrap
from typing import Any

from murmuration.agents import settings as agent_settings

_POWER = re.compile(r'^([1-9]\d*)e(\d\d?)$')  # 1e5, which int() does not read


def names(config_class: Any) -> list[str]:
  """The names of a config's settings, in order."""
  return [
    field.name for field in dataclasses.fields(config_class) if field.init
  ]


def qualified(section: str, config_class: Any) -> list[str]:
  return [f'{section}.{name}' for name in names(config_class)]


def make(section: str, config_class: Any, values: Mapping[str, Any]) -> Any:
  """A section's config from values; lists, as JSON has them, become tuples.

  Raises:
    ValueError: a name is unknown or a value is refused, with the reason.
  """
  try:
    return config_class(**_arguments(section, config_class, values))
  except TypeError as e:
    raise ValueError(f'The section {section!r} cannot be: {e}.') from e


def changed(
  classes: Mapping[str, Any],
  values: Mapping[str, Any],
  texts: Mapping[str, str],
) -> dict[str, Any]:
  """The values of all sections, with those that a command line changes.

  Args:
    classes: of the sections, by name.
    values: of the sections; what is left out has its default.
    texts: by 'section.name'.

  Raises:
    ValueError: there is no such setting, or it has another type. Bounds are
      for `make` to check.
  """
  if not texts:
    return dict(values)
  known = [name for one in classes.items() for name in qualified(*one)]
  # tyro takes its time for each section, but looks in all for a near name.
  used = {name.partition('.')[0] for name in texts}
  found, said = _tyro(
    {
      section: _unchecked(section, config_class, values.get(section, {}))
      for section, config_class in classes.items()
      if section in used or not set(texts) <= set(known)
    },
    [f'--config.{k}={_POWER.sub(_digits, text)}' for k, text in texts.items()],
  )
  if found is None:
    # Below a title and a line.
    said = re.split(r'^ -+ *$', said, maxsplit=1, flags=re.M)[-1]
    lines = [line.rstrip() for line in said.splitlines() if line.strip(' -')]
    said = textwrap.dedent('\n'.join(lines))
    raise ValueError(f'{said}\n--list-settings shows all settings.')
  for section, config in found.items():
    values = {
      **values,
      section: {name: getattr(config, name) for name in names(config)},
    }
  return dict(values)


def listing(sections: Mapping[str, Any], unused: Mapping[str, str]) -> str:
  """Name, type, comment and value of each setting, section by section.

  Args:
    sections: names to configs or to plain values.
    unused: settings that change nothing, and why.
  """
  notes = [f'{name} changes nothing here: {unused[name]}.' for name in unused]
  return '\n'.join([_tyro(sections, ['--help'])[1].rstrip(), '', *notes])


def near(word: str, known: Sequence[str]) -> str:
  """' Did you mean ...?', or that --list-settings names them all."""
  by_name = {one.rpartition('.')[2]: one for one in reversed(known)}
  found = difflib.get_close_matches(word.rpartition('.')[2], by_name, 1)
  if found:
    return f' Did you mean "{by_name[found[0]]}"?'
  return ' --list-settings shows all that there are.'


def _tyro(
  sections: Mapping[str, Any], args: Sequence[str]
) -> tuple[Mapping[str, Any] | None, str]:
  """The sections after `args`, or None; and what tyro prints."""
  import tyro  # only where it is needed: that takes 0.1 s

  said = io.StringIO()
  try:
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
      found = tyro.cli(
        dict,
        default={'config': dict(sections)},
        args=args,
        prog='run.py AGENT',
        description='Settings of this run and their values.',
        use_underscores=True,
        add_help='--help' in args,
        config=(
          tyro.conf.FlagConversionOff,  # =True, =False
          tyro.conf.UsePythonSyntaxForLiteralCollections,  # (64, 64)
        ),
      )
  except SystemExit:
    return None, said.getvalue()
  return found['config'], ''


def _unchecked(
  section: str, config_class: Any, values: Mapping[str, Any]
) -> Any:
  """A config whose bounds are not checked, and which may lack values."""
  import tyro

  agent_settings.type_hints(config_class)  # refuses what cannot be read
  kind = type(
    config_class.__name__,
    (config_class,),
    {'__post_init__': lambda self: None, '__doc__': config_class.__doc__},
  )
  missing = {
    field.name: tyro.MISSING
    for field in dataclasses.fields(config_class)
    if field.default is field.default_factory is dataclasses.MISSING
  }
  return kind(**{**missing, **_arguments(section, config_class, values)})


def _arguments(
  section: str, config_class: Any, values: Mapping[str, Any]
) -> dict[str, Any]:
  for name in values:
    if name not in names(config_class):
      raise ValueError(
        f'There is no setting {section}.{name}: a preset misspells it, or the '
        'run was made by an older version, with which it can go on.'
      )
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in values.items()
  }


def _digits(found: re.Match[str]) -> str:
  return found[1] + int(found[2]) * '0'
