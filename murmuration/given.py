"""What a caller gave as an object that has no importable name.

A run's config names its agent, environment and topology. One that is defined
in a script or a notebook is `murmuration.given:NAME`, which is found in the
process of that script and in those of its runs alone: objects.py and helper.py
put it here.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
  if name.startswith('_'):
    raise AttributeError(name)
  raise ValueError(
    f'{name!r} was given to murmuration.train as an object, which only the '
    'script that defines it has. Load the run there, with the object: '
    f'murmuration.load(path, environment={name}), or agent=, or topology=. '
    'What stands in a module of its own, module:Name, is found everywhere.'
  )
