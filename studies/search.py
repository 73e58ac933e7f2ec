"""What a sweep tries: values of settings, and trials of them.

Nothing here reads or starts a run; studies/sweep.py does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
import re

import numpy as np

_RANGE = re.compile(r'(uniform|log|int)\((.*)\)')
_TRIES = 100  # draws per wanted trial, because some are duplicates

Trial = dict[str, str]  # text of the value, by setting


@dataclasses.dataclass(frozen=True)
class Space:
  """Values of one setting.

  Attributes:
    values: texts to choose from; () for a range.
    kind: of a range: 'uniform', 'log' (log-uniform) or 'int' (whole numbers,
      including both ends); '' for values.
    low, high: ends of a range.
  """

  values: tuple[str, ...] = ()
  kind: str = ''
  low: float = 0.0
  high: float = 0.0

  def draw(self, rng: np.random.Generator) -> str:
    if not self.kind:
      return self.values[rng.integers(len(self.values))]
    if self.kind == 'int':
      return str(rng.integers(int(self.low), int(self.high) + 1))
    if self.kind == 'log':
      drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
    else:
      drawn = rng.uniform(self.low, self.high)
    return f'{drawn:.4g}'


def parse(name: str, text: str) -> Space:
  """Parses the values of setting `name` on the command line.

  `text` is '1e-3,3e-4', in which commas within brackets do not separate, or
  'log(1e-4,1e-2)', 'uniform(0.9,1)', 'int(1,8)'.

  Raises:
    ValueError: it is neither.
  """
  found = _RANGE.fullmatch(text)
  if found is None:
    values = tuple(_split(text))
    if '' in values or len(set(values)) < len(values):
      raise ValueError(
        f'{name}={text}: values stand between commas, each once. For instance '
        f'{name}=1,2 or {name}=log(1e-4,1e-2).'
      )
    return Space(values)
  kind, ends = found.group(1), found.group(2).split(',')
  try:
    low, high = (float(end) for end in ends)
  except ValueError:
    raise ValueError(
      f'{name}={text}: a range has two numbers, {kind}(LOW,HIGH).'
    ) from None
  if not (math.isfinite(low) and low < high < math.inf):
    raise ValueError(f'{name}={text}: {low:g} must be below {high:g}.')
  if kind == 'log' and low <= 0:
    raise ValueError(f'{name}={text}: {low:g} has no logarithm; begin above 0.')
  if kind == 'int' and (low % 1 or high % 1):
    raise ValueError(f'{name}={text}: int(LOW,HIGH) needs whole numbers.')
  return Space((), kind, low, high)


def grid(spaces: Mapping[str, Space]) -> list[Trial]:
  """All combinations; the last setting varies fastest.

  Raises:
    ValueError: a setting has a range instead of values.
  """
  for name, space in spaces.items():
    if space.kind:
      raise ValueError(
        f'{name}={space.kind}({space.low:g},{space.high:g}) is a range, and a '
        'grid needs values between commas. Give those, or --how=random.'
      )
  combined = itertools.product(*(space.values for space in spaces.values()))
  return [dict(zip(spaces, values)) for values in combined]


def draw(spaces: Mapping[str, Space], count: int, seed: int) -> list[Trial]:
  """Distinct random trials; fewer if there are not as many.

  The first ones do not depend on `count`, so that a larger sweep has them too.
  """
  rng = np.random.default_rng(seed)
  found: dict[tuple[str, ...], Trial] = {}
  for _ in range(_TRIES * count):
    trial = {name: space.draw(rng) for name, space in spaces.items()}
    found.setdefault(tuple(trial.values()), trial)
    if len(found) == count:
      break
  return list(found.values())


def mean(scores: Sequence[float | None]) -> float | None:
  """The mean over seeds; None if a seed has no score."""
  known = [score for score in scores if score is not None]
  return sum(known) / len(known) if len(known) == len(scores) else None


def _split(text: str) -> list[str]:
  """Splits at commas that are not within brackets."""
  words, depth = [''], 0
  for letter in text:
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      words.append('')
    else:
      words[-1] += letter
  return [word.strip() for word in words]
