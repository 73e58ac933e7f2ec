"""The graph of a program that has not started: nodes and their handles."""

from collections.abc import Iterator
import dataclasses
import re
from typing import Any

import launchpad as lp
from launchpad.nodes import base
import tree


def named(program: lp.Program) -> Iterator[tuple[str, base.Node]]:
  """Yields all nodes with their names ('group/index'), in program order."""
  for label, group in program.groups.items():
    for i, node in enumerate(group):
      yield f'{label}/{i}', node


def nodes(program: lp.Program) -> list[str]:
  """Returns the names of all nodes."""
  return [name for name, _ in named(program)]


def edges(program: lp.Program) -> set[tuple[str, str]]:
  """Returns pairs such as ('actor/0', 'replay/0').

  That is, actor/0 holds a handle of replay/0.
  """
  owners = {
    id(handle): name
    for name, node in named(program)
    for handle in node._created_handles
  }
  return {
    (name, owners[id(handle)])
    for name, node in named(program)
    for handle in node.input_handles
    if id(handle) in owners and owners[id(handle)] != name
  }


def to_mermaid(program: lp.Program) -> str:
  """Returns the program as a Mermaid flowchart with one box per group.

  An arrow goes from the holder of a handle to the handle's node.
  """
  lines = ['flowchart LR']
  for label, group in program.groups.items():
    count = f' x {len(group)}' if len(group) > 1 else ''
    lines.append(f'  {_identifier(label)}["{label}{count}"]')
  arrows: dict[tuple[str, str], None] = {}
  order = {name: i for i, name in enumerate(nodes(program))}
  for edge in sorted(edges(program), key=lambda e: (order[e[0]], order[e[1]])):
    source, target = (name.rsplit('/', 1)[0] for name in edge)
    arrows[source, target] = None
  for source, target in arrows:
    lines.append(f'  {_identifier(source)} --> {_identifier(target)}')
  return '\n'.join(lines) + '\n'


def check(program: lp.Program) -> None:
  """Refuses a program that cannot run, with a ValueError.

  That is one without nodes, one with a handle in a dataclass, which Launchpad
  would not connect, and one with arguments that `check_arguments` of what takes
  them refuses.
  """
  if not program.groups:
    raise ValueError(f'The program {program.name!r} has no nodes: add some.')
  for name, node in named(program):
    for arguments in _arguments(node):
      for owner in _hidden(arguments):
        raise ValueError(
          f'A handle is inside a {owner} that is an argument of {name}. '
          'Launchpad does not see it there and would not connect it: pass it '
          'as an argument of its own, or in a list, tuple or dict.'
        )
    constructor: Any = getattr(node, '_constructor', None)
    if hasattr(constructor, 'check_arguments'):
      constructor.check_arguments(*node._args, **node._kwargs)


def _arguments(node: base.Node) -> Iterator[Any]:
  for name in ('_args', '_kwargs', '_func_args', '_func_kwargs'):
    yield getattr(node, name, ())


def _hidden(arguments: Any) -> Iterator[str]:
  """Yields the class names of the dataclasses that hold handles."""
  for leaf in tree.flatten(arguments):
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
      fields = [getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)]
      for value in tree.flatten(fields):
        if isinstance(value, base.Handle):
          yield type(leaf).__name__
      yield from _hidden(fields)


def _identifier(label: str) -> str:
  return re.sub(r'\W', '_', label)
