"""What a caller gave as an object that has no importable name.

A run's config names its agent, environment and topology. One that is defined
in a script or a notebook is `murmuration.given:NAME`; helper.py puts it here,
in the processes of that caller's runs and in no others.
"""

from __future__ import annotations

from typing import Any

# What an environment that could not be built is to be tried as, by itself.
__instead__ = 'what you gave as environment='


def __getattr__(name: str) -> Any:
  if name.startswith('_'):
    raise AttributeError(name)
  raise ValueError(
    f'{name!r} was given to murmuration.train as an object, which only the '
    'script that defines it has. Load the run there, with the object: '
    f'murmuration.load(path, agent={name}), or environment=, or topology=. '
    'What stands in a module of its own, module:Name, is found everywhere.'
  )
