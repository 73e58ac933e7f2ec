"""What to do when a node dies or hangs: a policy per node group, and limits."""

from collections.abc import Mapping
import dataclasses
import weakref

import launchpad as lp


@dataclasses.dataclass(frozen=True)
class Restart:
  """Start the node again, after a pause that doubles.

  A node that died more than max_restarts times in a row has failed for good,
  and ends the run. A life that worked starts the count anew: one that did
  something for the run, and lasted for healthy_s or was ended from outside.
  """

  max_restarts: int | None = None  # in a row; None: as the program's limits say
  first_backoff_s: float = 0.2
  backoff_cap_s: float = 5.0
  healthy_s: float = 10.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value is not None and value < 0:
        raise ValueError(f'Restart.{field.name}={value} must be at least 0.')

  def backoff_s(self, restarts: int) -> float:
    """Pause before the next restart, after so many restarts in a row."""
    return min(
      self.backoff_cap_s, self.first_backoff_s * 2.0 ** min(restarts, 60)
    )


@dataclasses.dataclass(frozen=True)
class Stop:
  """End the run, with exit code 1."""


@dataclasses.dataclass(frozen=True)
class EndsRun:
  """When a node of the group returns, the whole run ends, with exit code 0.

  Attributes:
    restart: what to do when the node fails; None ends the run with exit code 1.
  """

  restart: Restart | None = None


Policy = Restart | Stop | EndsRun


@dataclasses.dataclass(frozen=True)
class Limits:
  """How much a program's nodes may die, hang and wait."""

  max_restarts: int = 5  # of a node, in a row
  restart_window_s: float = 600.0  # older restarts are forgotten
  max_silences: int = 3  # of a node, in that window
  silent_s: float = 60.0  # until a node that shows no life is restarted
  stall_s: float = 180.0  # until a run in which nothing moves is ended


DEFAULT = Limits()

_POLICIES: 'weakref.WeakKeyDictionary[lp.Program, dict[str, Policy]]' = (
  weakref.WeakKeyDictionary()
)
_LIMITS: 'weakref.WeakKeyDictionary[lp.Program, Limits]' = (
  weakref.WeakKeyDictionary()
)


def limit(program: lp.Program, limits: Limits) -> None:
  """Sets the limits of a program."""
  _LIMITS[program] = limits


def limits_of(program: lp.Program) -> Limits:
  """Returns the limits of a program."""
  return _LIMITS.get(program, DEFAULT)


def assign(program: lp.Program, policies: Mapping[str, Policy]) -> None:
  """Says what to do when a node of a group dies; adds to earlier calls.

  Args:
    program: the program; its groups must be there already.
    policies: group label -> policy. Groups left out have `Stop()`.

  Raises:
    ValueError: the program has no such group.
    TypeError: not a policy.
  """
  for label, policy in policies.items():
    if label not in program.groups:
      raise ValueError(
        f'The program {program.name!r} has no group {label!r}: it has '
        f'{", ".join(sorted(program.groups)) or "none"}. Add the nodes first.'
      )
    if not isinstance(policy, (Restart, Stop, EndsRun)):
      raise TypeError(
        f'{policy!r} of group {label!r} is not a policy: use Restart(), '
        'Stop() or EndsRun().'
      )
  _POLICIES.setdefault(program, {}).update(policies)


def of(program: lp.Program) -> dict[str, Policy]:
  """Returns the policy of every group of the program."""
  assigned = _POLICIES.get(program, {})
  return {label: assigned.get(label, Stop()) for label in program.groups}
