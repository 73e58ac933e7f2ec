"""What a caller gave as an object that has no importable name.

A run's config names its agent, environment and topology. One that is defined
in a script or a notebook is `murmuration.given:NAME`; helper.py puts it here,
in the processes of that caller's runs and in no others.
"""

from __future__ import annotations

from typing import Any

# Name to 'agent', 'environment' or 'topology', as far as a run has said it.
__kinds__: dict[str, str] = {}


def __getattr__(name: str) -> Any:
  if name.startswith('_'):
    raise AttributeError(name)
  kind = __kinds__.get(name)
  object_ = f'{kind}={name}'
  if kind is None:
    object_ = f'agent={name}, or environment=, or topology='
  raise ValueError(
    f'{name!r} was given to murmuration.train as an object, which only the '
    'script that defines it has. Load the run there, with the object: '
    f'murmuration.load(path, {object_}). '
    'What stands in a module of its own, module:Name, is found everywhere.'
  )
