"""Agents, environments and topologies of a caller, as names and as bytes.

What is to run goes to a helper process, as a name where it has an importable
one, else by value (cloudpickle).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
import contextlib
import os
import pathlib
import re
import sys
import types
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
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
  """What goes to helper processes beside names.

  Attributes:
    own: whether any of it is code of the caller's, and no name of the project's
      or of gymnasium's.
  """

  def __init__(self) -> None:
    self.own = False
    self._objects: dict[str, Any] = {}
    # Of gymnasium's registry: what was named, and what may be asked for.
    self._ids: dict[str, Any] = {}
    self._others: dict[str, Any] = {}
    self._pickled: bytes | None = None

  def name(self, thing: Any, kind: str, kept: str = '') -> str:
    """The name under which a helper process finds `thing`.

    Args:
      thing: a name already, or a class, a function, a module, an object.
      kind: 'agent', 'environment' or 'topology'.
      kept: the name that a run has for it, where there is a run.

    Raises:
      ValueError: it cannot be used as one.
    """
    self._pickled = None
    _check(thing, kind)
    if kind == 'environment':
      self._keep_ids(thing)
    self.own |= bool(self._ids) or _is_own(thing, kind)
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
    return f'{GIVEN}:{name}'

  def _keep_ids(self, thing: Any) -> None:
    """Takes what this process has registered at gymnasium along.

    Of an id its own; of what makes an environment, which may ask for any, all
    that can be sent.
    """
    found = _registered()
    if not isinstance(thing, str):
      self._others.update(found)
    elif thing in found:
      self._ids[thing] = found[thing]

  def pickled(self) -> bytes | None:
    """{'objects', 'ids', 'others'} by value; None if there are none."""
    kept = self._objects or self._ids or self._others
    if self._pickled is not None or not kept:
      return self._pickled
    import cloudpickle  # only who defines objects pays for it

    others = {}
    for name, spec in self._others.items():
      with contextlib.suppress(Exception):  # of whatever its arguments are
        others[name] = cloudpickle.dumps(spec)
    found = {'objects': self._objects, 'ids': self._ids, 'others': others}
    self._pickled = cloudpickle.dumps(found)
    return self._pickled


def kinds(config: Mapping[str, Any]) -> dict[str, str]:
  """Which of a run's objects have no importable name: name to kind."""
  found = {}
  for key, kind in KEYS.items():
    place, _, name = str(config.get(key)).partition(':')
    if place == GIVEN:
      found[name] = kind
  return found


def search_path() -> list[str]:
  """Where this process finds modules."""
  return [os.path.abspath(path) if path else os.getcwd() for path in sys.path]


def _is_own(thing: Any, kind: str) -> bool:
  """Whether it is code that may be another one the next time."""
  if not isinstance(thing, str):
    return True
  place, colon, _ = thing.partition(':')
  preset = kind == 'agent' and (ROOT / 'configs' / f'{place}.py').is_file()
  return bool(colon) and not preset


def _registered() -> dict[str, Any]:
  """What gymnasium's registry has here, and not in a new process."""
  registration: Any = sys.modules.get('gymnasium.envs.registration')
  if registration is None:
    return {}
  # Its own ids are there again; but they may have been registered over.
  package: Any = sys.modules[registration.__package__]
  source = pathlib.Path(package.__file__).read_text(encoding='utf-8')
  new: dict[str, Any] = {}
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'register':
      # A function, see below; or another version's way to write it.
      with contextlib.suppress(ValueError, LookupError, TypeError):
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        new[options['id']] = registration.EnvSpec(**options)
  return {
    name: spec
    for name, spec in registration.registry.items()
    if spec != new.get(name)
    # A function that says what is to be installed.
    and getattr(spec.entry_point, '__module__', '') != package.__name__
  }


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
  """Of which class a class says that its config is, or None.

  Looked up here, as a class that is sent by value leaves the names in its
  annotations behind.

  Raises:
    ValueError: it says another than its module has.
  """
  if not isinstance(thing, type):
    return None
  try:
    return thing.config_class()  # type: ignore[attr-defined]
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
