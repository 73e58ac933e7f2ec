"""Modules that are imported when they are first used.

TensorFlow takes seconds to import, and a command that is refused, or only asks
for help, needs nothing of it. So the commands say, before their imports:

    later.put_off()   # `import tensorflow as tf` takes no time from here on
    ...               # names, settings and environments are checked
    later.load()      # by one thread, before there are others

A module that is put off loads at the first attribute that is asked of it, or
with a module inside it. `importlib.util.LazyLoader` is meant for this, but up
to Python 3.11 its modules load at a second `import` of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import importlib.util
import sys
import types
from typing import Any

SLOW = ('tensorflow', 'sonnet', 'reverb', 'replay.checkpoints.restore')


class _Module(types.ModuleType):
  """A module whose code has not run yet."""

  def __getattr__(self, name: str) -> Any:
    _run(self)
    return getattr(self, name)


def put_off(names: Sequence[str] = SLOW) -> None:
  """Puts off imports; what is loaded already, or missing, is left as it is."""
  for name in names:
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
      continue
    module = importlib.util.module_from_spec(spec)
    # Else a module inside it would be imported without it.
    vars(module).pop('__path__', None)
    module.__class__ = _Module
    sys.modules[name] = module


def load(names: Sequence[str] = SLOW) -> None:
  """Loads what was put off. Threads must not: the first one would not wait."""
  for name in names:
    module = importlib.import_module(name)
    if isinstance(module, _Module):
      _run(module)


def _run(module: types.ModuleType) -> None:
  spec = module.__spec__
  assert spec is not None and spec.loader is not None
  module.__class__ = types.ModuleType
  if spec.submodule_search_locations is not None:
    module.__path__ = spec.submodule_search_locations
  spec.loader.exec_module(module)
