"""Restart policies of node groups, and limits on restarts and silence."""

from collections.abc import Mapping
import dataclasses
import weakref

import launchpad as lp


@dataclasses.dataclass(frozen=True)
class Restart:
  """Restart the node, after a pause that doubles each time.

  A node that dies more than max_restarts times in a row has failed permanently
  and ends the run. The count starts anew after a start in which the node did
  work for the run, and ran for healthy_s or was killed from outside.
  """

  max_restarts: int | None = None  # in a row; None: the program's limit
  first_backoff_s: float = 0.2
  backoff_cap_s: float = 5.0
  healthy_s: float = 10.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value is not None and value < 0:
        raise ValueError(f'Restart.{field.name}={value} must be at least 0.')

  def backoff_s(self, restarts: int) -> float:
    """Seconds before the next restart, after `restarts` in a row."""
    return min(
      self.backoff_cap_s, self.first_backoff_s * 2.0 ** min(restarts, 60)
    )


@dataclasses.dataclass(frozen=True)
class Stop:
  """End the run, with exit code 1."""


@dataclasses.dataclass(frozen=True)
class EndsRun:
  """End the run, with exit code 0, when a node of the group returns."""

  # If the node fails; None: end the run with exit code 1.
  restart: Restart | None = None


Policy = Restart | Stop | EndsRun


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits on a program's restarts, silent nodes and stalls."""

  max_restarts: int = 5  # of a node, in a row
  restart_window_s: float = 600.0  # older restarts are forgotten
  max_silences: int = 3  # of a node, in that window
  silent_s: float = 60.0  # without a heartbeat until a node is restarted
  stall_s: float = 180.0  # without a step or update until the run is ended


DEFAULT = Limits()

_POLICIES: 'weakref.WeakKeyDictionary[lp.Program, dict[str, Policy]]' = (
  weakref.WeakKeyDictionary()
)
_LIMITS: 'weakref.WeakKeyDictionary[lp.Program, Limits]' = (
  weakref.WeakKeyDictionary()
)


def limit(program: lp.Program, limits: Limits) -> None:
  _LIMITS[program] = limits


def limits_of(program: lp.Program) -> Limits:
  """Returns the limits of a program, or the default ones."""
  return _LIMITS.get(program, DEFAULT)


def assign(program: lp.Program, policies: Mapping[str, Policy]) -> None:
  """Sets the policies of groups by label, in addition to earlier calls.

  The program must have the groups already. Those without one have `Stop()`.
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
