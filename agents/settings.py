"""Bounds of settings beside their fields, and one check of them all.

    @dataclasses.dataclass(frozen=True)
    class Config:
      batch_size: settings.Whole = 64  # transitions per update
      reward_clip: settings.Positive | None = None  # of each reward
      loss: Literal['huber', 'squared'] = 'huber'
      dueling: bool = False  # a plain type is bound enough

      def __post_init__(self):
        settings.check(self, 'agent')

Bounds are part of the annotation (typing.Annotated), so a field keeps its plain
default, and a type checker sees a plain int or float.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import math
import numbers
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple

# The largest number (rounded down) of float32, which all computations use.
_LARGEST = 3.4e38


@dataclasses.dataclass(frozen=True, repr=False)
class Bounds:
  """The values that a setting may have: in words, and as a predicate."""

  words: str  # to follow 'must be'
  hold: Callable[[Any], bool]

  def __repr__(self) -> str:
    return self.words  # of tyro's errors


def _is_number(value: Any) -> bool:
  real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return real and abs(value) <= _LARGEST


def _is_whole(value: Any) -> bool:
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def at_least(limit: int) -> Bounds:
  """A whole number of at least `limit`."""
  return Bounds(
    f'a whole number of at least {limit}', lambda x: _is_whole(x) and x >= limit
  )


def whole(low: int, high: int) -> Bounds:
  """A whole number from `low` to `high`."""
  return Bounds(
    f'a whole number from {low} to {high}',
    lambda x: _is_whole(x) and low <= x <= high,
  )


def between(low: float, high: float, words: str, ends: str = '[]') -> Bounds:
  """A float32 from `low` to `high`; '(' and ')' exclude an end."""

  def hold(x: Any) -> bool:
    if not _is_number(x):
      return False
    above = low < x or (low == x and ends[0] == '[')
    return above and (x < high or (x == high and ends[1] == ']'))

  return Bounds(words, hold)


@dataclasses.dataclass(frozen=True)
class OnlyWith:
  """What another field must be for a setting to have an effect."""

  field: str
  values: tuple[Any, ...]  # one of these; none: anything that is set

  def holds(self, config: Any) -> bool:
    value = getattr(config, self.field)
    return value in self.values if self.values else bool(value)


def only_with(field: str, *values: Any) -> OnlyWith:
  """Beside bounds: a setting that changes nothing unless `field` is as said.

  decay: Annotated[Fraction, only_with('optimizer', 'rmsprop')] = 0.9
  """
  return OnlyWith(field, values)


def _are_sizes(value: Any) -> bool:
  return (
    isinstance(value, (tuple, list))
    and len(value) > 0
    and all(_is_whole(n) and n > 0 for n in value)
  )


Whole = Annotated[int, at_least(1)]
Count = Annotated[int, at_least(0)]
Positive = Annotated[float, between(0, math.inf, 'a positive number', '()')]
NotNegative = Annotated[
  float, between(0, math.inf, 'a number that is not negative')
]
Fraction = Annotated[float, between(0, 1, 'between 0 and 1')]
# Processes of one kind, or servers in them: more is taken for a typing error.
Nodes = Annotated[int, whole(1, 4096)]
# Items of a table, which Reverb counts in 32 bits.
Items = Annotated[int, whole(1, 2**31 - 1)]
# 10^8 s are three years: more than clocks here count, or any wait takes.
Seconds = Annotated[
  float, between(0, 1e8, 'a number of seconds above 0, at most 10^8', '(]')
]
Pause = Annotated[float, between(0, 1e8, 'a number of seconds from 0 to 10^8')]
Share = Annotated[float, between(0, 1, 'above 0 and at most 1', '(]')]
Sizes = Annotated[
  tuple[int, ...], Bounds('one or more whole numbers above 0', _are_sizes)
]

_OF_TYPE = {
  int: Bounds('a whole number', _is_whole),
  float: Bounds('a finite number', _is_number),
  bool: Bounds('True or False', lambda x: isinstance(x, bool)),
  str: Bounds('text', lambda x: isinstance(x, str)),
}
_ANYTHING = Bounds('', lambda x: True)


def check(config: Any, section: str) -> None:
  """Checks the type and bounds of all fields of a dataclass.

  Raises:
    ValueError: names the first invalid field, its value, bounds and flag, for
      which `section` is the config's section on the command line.
  """
  for name, parsed in _parsed(config.__class__).items():
    value = getattr(config, name)
    if (value is None and parsed.optional) or parsed.hold(value):
      continue
    said = f'must be {parsed.words}'
    if parsed.words.startswith('one of '):
      said = f'is not known. Choose {parsed.words}'
    elif isinstance(value, (int, float)) and abs(value) > _LARGEST:
      said += f', and no larger than float32 can be ({_LARGEST:g})'
    raise ValueError(
      f'{section}.{name}={value!r} {said}. Set --config.{section}.{name}.'
    )


def ignored(config: Any, section: str) -> dict[str, str]:
  """Settings that change nothing, as others are (`only_with`), and why."""
  found = {}
  for name, parsed in _parsed(config.__class__).items():
    needs = parsed.only_with
    if needs is not None and not needs.holds(config):
      wanted = ' or '.join(map(repr, needs.values))
      wanted = f'{section}.{needs.field}{wanted and "="}{wanted}'
      have = getattr(config, needs.field)
      found[f'{section}.{name}'] = f'it needs {wanted}, and that is {have!r}'
  return found


def ordered(
  config: Any, low: str, high: str, why: str, equal: bool = False
) -> None:
  """Checks that field `low` is below `high`, or equal if `equal`.

  Both are named with their section, such as 'agent.v_min'; None bounds nothing.

  Raises:
    ValueError: they are not in order; the message ends with the reason `why`.
  """
  first, second = (getattr(config, n.split('.')[1]) for n in (low, high))
  if first is None or second is None or first < second:
    return
  if not (equal and first == second):
    relation = 'at most' if equal else 'below'
    raise ValueError(f'{low}={first} must be {relation} {high}={second}: {why}')


class _Parsed(NamedTuple):
  """The content of a field's annotation."""

  words: str
  hold: Callable[[Any], bool]
  optional: bool  # whether it may be None
  only_with: OnlyWith | None = None


def type_hints(kind: Any) -> dict[str, Any]:
  """As typing.get_type_hints, with bounds.

  Raises:
    ValueError: an annotation, which may be any expression, cannot be read.
  """
  try:
    return typing.get_type_hints(kind, include_extras=True)
  except Exception as e:
    raise unreadable(kind, e) from e


def unreadable(kind: type, error: Exception) -> ValueError:
  """That the annotations of a class raise this, in a sentence."""
  return ValueError(
    f'the annotations of {kind.__name__} cannot be read: '
    f'{type(error).__name__}: {error}. Import what they name where it can be '
    'found when the program runs, not under TYPE_CHECKING alone.'
  )


@functools.cache
def _parsed(config_class: Any) -> dict[str, _Parsed]:
  hints = type_hints(config_class)
  return {
    field.name: _parse(hints[field.name])
    for field in dataclasses.fields(config_class)
  }


def _parse(hint: Any) -> _Parsed:
  optional, needs = False, None
  if typing.get_origin(hint) is Annotated:
    said = hint.__metadata__
    needs = next((one for one in said if isinstance(one, OnlyWith)), None)
    if not any(isinstance(one, Bounds) for one in said):
      hint = hint.__origin__
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    optional = type(None) in typing.get_args(hint)
    hint = next(h for h in typing.get_args(hint) if h is not type(None))
  bounds = _ANYTHING
  if typing.get_origin(hint) is Annotated:
    bounds = next(b for b in hint.__metadata__ if isinstance(b, Bounds))
  elif typing.get_origin(hint) is Literal:
    known = typing.get_args(hint)
    names = ', '.join(map(repr, known))
    bounds = Bounds(f'one of {names}', lambda x: x in known)
  elif isinstance(hint, type):
    bounds = _OF_TYPE.get(hint, _ANYTHING)
  words = bounds.words
  if optional and words:
    words += ', or None'
  return _Parsed(words, bounds.hold, optional, needs)
