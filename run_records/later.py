"""Lazy imports of slow modules.

TensorFlow takes seconds to import, and a command that is refused or only prints
its help does not need it. So the commands call, before their imports:

    later.put_off()   # from here on `import tensorflow as tf` takes no time
    ...               # names, settings and environments are checked
    later.load()      # in one thread, before others start

A process that is not ours keeps none of it in `sys.modules`, where others look
for what is imported:

    with later.deferred():
      from murmuration import playing

A deferred module loads when one of its attributes is first read, or when one of
its submodules is imported. `importlib.util.LazyLoader` is meant for this, but
up to Python 3.11 its modules load at a second `import` of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import importlib
import importlib.util
import os
import sys
import types
from typing import Any

SLOW = ('tensorflow', 'sonnet', 'reverb', 'murmuration.replay.checkpoints')


class _Module(types.ModuleType):
  """A module whose code has not run yet."""

  def __getattr__(self, name: str) -> Any:
    if sys.modules.get(self.__name__) is self:
      _run(self)
      return getattr(self, name)
    # It was deferred within `deferred`, and stands for the real one.
    found = importlib.import_module(self.__name__)
    value = getattr(found, name)
    vars(self).update(vars(found))
    return value


def put_off(names: Sequence[str] = SLOW) -> None:
  """Defers imports, except of modules that are loaded already or missing."""
  # TensorFlow's notes about GPUs and CPU features; errors are still shown.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  for name in names:
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
      continue
    module = importlib.util.module_from_spec(spec)
    # With a path, a submodule could be imported without loading this module.
    vars(module).pop('__path__', None)
    module.__class__ = _Module
    sys.modules[name] = module


@contextlib.contextmanager
def deferred(names: Sequence[str] = SLOW) -> Iterator[None]:
  """Defers the imports within this alone; see above."""
  put_off(names)
  try:
    yield
  finally:
    for name in names:
      if isinstance(sys.modules.get(name), _Module):
        del sys.modules[name]


def load(names: Sequence[str] = SLOW) -> None:
  """Loads the deferred modules. Call it before any other thread starts.

  Of two threads that load a module, one could use it half loaded.
  """
  # gRPC must not look for threads of its own at a fork: there are none yet.
  os.environ.setdefault('GRPC_ENABLE_FORK_SUPPORT', '0')
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
