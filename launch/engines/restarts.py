"""What a program's nodes come back from, and what ends its run."""

import dataclasses
from typing import Any
import weakref

import launchpad as lp


@dataclasses.dataclass(frozen=True)
class Rules:
  """The rules of one program.

  Attributes:
    come_back: whether nodes that die are started again, after a pause that
      doubles each time; if not, the death of one ends the run with exit code 1.
    ends_run: the group of which a node that returns ends the run with exit code
      0; '' if it ends when all nodes have returned.
    max_restarts: of a node, in a row. The count starts anew after a start in
      which the node did work for the run, and ran for 10 s or was killed from
      outside; not after one that fell silent or ran out of memory.
    restart_window_s: older restarts are forgotten.
    silent_s: without a heartbeat until a node is killed.
    stall_s: without a step or update until the run is ended.
  """

  come_back: bool = False
  ends_run: str = ''
  max_restarts: int = 5
  restart_window_s: float = 600.0
  silent_s: float = 60.0
  stall_s: float = 180.0


_RULES: 'weakref.WeakKeyDictionary[lp.Program, Rules]' = (
  weakref.WeakKeyDictionary()
)


def assign(program: lp.Program, **changes: Any) -> None:
  """Changes the `Rules` of a program; call it after the nodes were added."""
  rules = dataclasses.replace(of(program), **changes)
  if rules.ends_run and rules.ends_run not in program.groups:
    raise ValueError(
      f'The program {program.name!r} has no group {rules.ends_run!r}: it has '
      f'{", ".join(sorted(program.groups)) or "none"}. Add the nodes first.'
    )
  _RULES[program] = rules


def of(program: lp.Program) -> Rules:
  """Returns the rules of a program, or the default ones."""
  return _RULES.get(program, Rules())
