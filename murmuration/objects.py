"""Agents, environments and topologies of a caller, as names and as bytes.

They go to the processes of a run as a name where they have an importable one,
else by value (cloudpickle).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import itertools
import os
import pickle
import re
import sys
import types
from typing import Any
import warnings

from murmuration import given

GIVEN = 'murmuration.given'
# Where the config of a run names them.
KEYS = {
  'agent_name': 'agent',
  'environment': 'environment',
  'topology': 'topology',
}
_FUNCTION = (
  'a function that makes a new one each time, such as environment=lambda: '
  'MyEnv(size=8).'
)
_NEEDED = {
  'agent': (
    "a name such as 'ppo:pendulum', 'module:Name', or a class of yours, which "
    'is a subclass of murmuration.agents.base.Agent.'
  ),
  'environment': f"a gymnasium id, 'module:Name', a class, or {_FUNCTION}",
  'topology': (
    "a name such as 'swarm', 'module:Name', or an object of yours, which has "
    'SECTION, Config, members and build.'
  ),
}
# What an object has that is one, and no class.
_MARKS = {'agent': 'presets', 'topology': 'SECTION'}


class Objects:
  """A run's agent, environment and topology, where they are no names.

  Attributes:
    here: the names under which this process finds what has no importable name,
      by kind: those of several runs may be alike.
  """

  def __init__(self) -> None:
    self.here: dict[str, str] = {}
    self._objects: dict[str, Any] = {}
    self._environment: Any = None

  def name(self, thing: Any, kind: str, kept: str = '') -> str:
    """The name under which a run's processes find `thing`.

    Args:
      thing: a name already, or a class, a function, a module, an object.
      kind: 'agent', 'environment' or 'topology'.
      kept: the name that a run has for it, where there is a run.

    Raises:
      ValueError: it cannot be used as one.
    """
    _check(thing, kind)
    if kind == 'environment':
      self._environment = thing
    if isinstance(thing, str):
      return thing
    place, _, name = kept.partition(':')
    if place != GIVEN:
      found = _importable(thing)
      if found:
        return found
      own = getattr(thing, '__name__', None) or getattr(thing, 'name', None)
      name = re.sub(r'\W+', '_', str(own or kind)).strip('_') or kind
      if name == 'lambda':
        name = kind
      while name in self._objects:  # an agent and an environment, say
        name += f'_{kind}'
    config = _config_of(thing) if kind == 'agent' else None
    self._objects[name] = (thing, config)
    for number in itertools.count(1):
      one = f'{name}_{number}'
      if vars(given).setdefault(one, thing) is thing:
        self.here[kind] = f'{GIVEN}:{one}'
        break
    return f'{GIVEN}:{name}'

  def config_here(self, config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config with the names that this process knows."""
    names = {key: self.here.get(kind) for key, kind in KEYS.items()}
    return {**config, **{key: name for key, name in names.items() if name}}

  def pickled(self) -> dict[str, Any]:
    """{'objects', 'ids'} by value, for `take`; of ids each for itself."""
    if not self._objects and 'gymnasium' not in sys.modules:
      return {'objects': None, 'ids': {}}
    import cloudpickle

    return {
      'objects': cloudpickle.dumps(self._objects) if self._objects else None,
      'ids': self._ids(cloudpickle.dumps),
    }

  def _ids(self, dumps: Callable[[Any], bytes]) -> dict[str, bytes]:
    """What gymnasium's registry has here, and may not have elsewhere.

    Of an id its own; of what makes an environment, which may ask for any, all
    that can be sent.
    """
    registration: Any = sys.modules.get('gymnasium.envs.registration')
    found: dict[str, bytes] = {}
    if self._environment is None:  # that of a preset
      return found
    for name, spec in dict(getattr(registration, 'registry', {})).items():
      if name == self._environment:
        return {name: dumps(spec)}
      if not isinstance(self._environment, str):
        with contextlib.suppress(Exception):  # of whatever its arguments are
          found[name] = dumps(spec)
    return found


def take(pickled: Mapping[str, Any]) -> None:
  """Makes what another process has `pickled` known in this one.

  Raises:
    Exception: an object is of a module that is not found here.
  """
  import gymnasium

  from murmuration.launch import registry

  objects = pickle.loads(pickled['objects']) if pickled['objects'] else {}
  for name, (thing, config) in objects.items():
    if registry.is_agent_class(thing):
      thing = registry.of_class(thing, config)
    vars(given)[name] = thing
  for name, spec in pickled['ids'].items():
    with contextlib.suppress(Exception):  # of a module that is not found here
      gymnasium.registry[name] = pickle.loads(spec)
  # A package that is imported later registers all of its own again.
  warnings.filterwarnings('ignore', '.*Overriding environment')


def search_path() -> list[str]:
  """Where this process finds modules."""
  return [os.path.abspath(path) if path else os.getcwd() for path in sys.path]


def _importable(thing: Any) -> str | None:
  """`module:Name` of what another process can import, else None."""
  if isinstance(thing, types.ModuleType):
    package, _, name = thing.__name__.rpartition('.')
    return f'{package}:{name}' if package else None
  if hasattr(thing, '__qualname__'):
    places = [(thing.__module__, thing.__qualname__)]
  else:
    places = [
      (module, name)
      for module, found in list(sys.modules.items())
      for name, value in list(getattr(found, '__dict__', {}).items())
      if value is thing
    ]
  for module, name in places:
    loaded = sys.modules.get(module)
    if (
      name.isidentifier()
      and getattr(loaded, '__spec__', None) is not None
      and module not in ('__main__', '__mp_main__')
      and getattr(loaded, name, None) is thing
    ):
      return f'{module}:{name}'
  return None


def _config_of(thing: Any) -> Any:
  """Of which class an agent's class says that its config is, or None.

  Looked up here, as a class that is sent by value leaves the names in its
  annotations behind.
  """
  try:
    return thing.config_class()
  except ValueError:
    raise
  except Exception:  # of any expression; registry.of_class says what is wrong
    return None


def _check(thing: Any, kind: str) -> None:
  """Refuses what can be none, before a process is started for it.

  A number or None is the value of some name in some module, so that looking
  for where it can be imported from would find another thing.
  """
  if isinstance(thing, type):
    return
  if isinstance(thing, str):
    fits = bool(thing) and not thing.endswith(':')
  elif kind != 'environment':
    fits = hasattr(thing, _MARKS[kind])
  elif hasattr(thing, 'step'):
    raise ValueError(
      f'environment={thing!r} is one environment, but a run makes many, in '
      'several processes. Give what makes one: a gymnasium id, a class, '
      f"'module:Name', or {_FUNCTION}"
    )
  else:
    fits = callable(thing)
  if not fits:
    raise ValueError(f'{kind}={thing!r} is no {kind}: give {_NEEDED[kind]}')
