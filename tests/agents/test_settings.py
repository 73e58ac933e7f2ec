"""Bounds of settings, read from the fields they stand beside."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Literal

import numpy as np
import pytest

from murmuration.agents import settings
from murmuration.launch import actor_settings


@dataclasses.dataclass(frozen=True)
class Parent:
  """What is inherited."""

  inherited: int = 3  # of the parent
  overridden: settings.Whole = 1  # as the parent has it


@dataclasses.dataclass(frozen=True)
class Config(Parent):
  """One field of each kind."""

  whole: settings.Whole = 2  # N, a process each
  # Environment steps,
  # of one actor.
  count: settings.Count | None = None
  positive: settings.Positive = 1e-3
  fraction: settings.Fraction = 0.99  # per 'step' # of time
  share: settings.Share = 1.0
  two: Annotated[int, settings.at_least(2)] = 2
  sizes: settings.Sizes = (64, 64)
  kind: Literal['first', 'second'] = 'first'
  flag: bool = False
  number: float | None = 0.0
  name: str = ''
  overridden: settings.Whole = 5  # as the child has it

  def __post_init__(self):
    settings.check(self, 'agent')


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'whole': 0}, r'agent.whole=0 must be a whole number of at least 1\. '),
    ({'whole': 2.0}, 'agent.whole=2.0 must be a whole number'),
    ({'whole': True}, 'agent.whole=True must be a whole number'),
    ({'whole': None}, 'agent.whole=None must be a whole number'),
    (
      {'count': -1},
      'agent.count=-1 .* at least 0, or None. Set --config.agent',
    ),
    ({'positive': 0.0}, 'agent.positive=0.0 must be a positive number'),
    ({'positive': math.inf}, 'agent.positive=inf must be'),
    ({'positive': math.nan}, 'agent.positive=nan must be'),
    ({'positive': 1e300}, r'=1e\+300 must be a positive number, and no lar'),
    ({'positive': 10**400}, 'must be a positive number, and no larger than'),
    ({'positive': '1'}, "agent.positive='1' must be"),
    ({'fraction': 1.01}, 'agent.fraction=1.01 must be between 0 and 1'),
    ({'share': 0.0}, 'agent.share=0.0 must be above 0 and at most 1'),
    ({'two': 1}, 'agent.two=1 must be a whole number of at least 2'),
    ({'sizes': ()}, r'agent.sizes=\(\) must be one or more whole numbers'),
    ({'sizes': (64, 0)}, r'agent.sizes=\(64, 0\) must be'),
    ({'sizes': 64}, 'agent.sizes=64 must be'),
    (
      {'kind': 'third'},
      "'third' is not known. Choose one of 'first', 'second'",
    ),
    ({'flag': 1}, 'agent.flag=1 must be True or False'),
    ({'number': math.inf}, 'agent.number=inf must be a finite number, or None'),
    ({'name': 3}, 'agent.name=3 must be text'),
    ({'inherited': 0.5}, 'agent.inherited=0.5 must be a whole number'),
  ],
)
def test_what_is_out_of_bounds_is_refused_with_name_value_and_flag(
  options, message
):
  with pytest.raises(ValueError, match=message):
    Config(**options)


def test_bounds_belong_to_what_they_allow():
  Config(count=0, fraction=0, share=1, number=None, sizes=[8], flag=True)
  Config(whole=np.int64(3), positive=np.float32(2), count=None, fraction=1)


def test_one_setting_must_be_below_another():
  config = Config(whole=5, two=5)
  with pytest.raises(ValueError, match='a.whole=5 must be below a.two=5: why'):
    settings.ordered(config, 'a.whole', 'a.two', 'why')
  settings.ordered(config, 'a.whole', 'a.two', 'why', equal=True)
  settings.ordered(config, 'a.whole', 'a.count', 'None bounds nothing')


def test_a_setting_that_needs_another_is_ignored_without_it():
  @dataclasses.dataclass(frozen=True)
  class Config:
    rule: Literal['a', 'b', 'c'] = 'a'
    limit: Annotated[
      settings.Positive | None, settings.only_with('rule', 'b', 'c')
    ] = 1.0
    kind: Annotated[Literal['x', 'y'], settings.only_with('limit')] = 'x'

  settings.check(Config(), 'agent')
  with pytest.raises(ValueError, match='agent.limit=-1.0 must be a positive'):
    settings.check(Config(limit=-1.0), 'agent')
  with pytest.raises(ValueError, match="Choose one of 'x', 'y'"):
    settings.check(Config(kind='z'), 'agent')
  assert settings.ignored(Config(), 'agent') == {
    'agent.limit': "it needs agent.rule='b' or 'c', and that is 'a'"
  }
  assert settings.ignored(Config(rule='b', limit=None), 'agent') == {
    'agent.kind': 'it needs agent.limit, and that is None'
  }
  assert settings.ignored(Config(rule='c'), 'agent') == {}


def test_a_lag_below_zero_would_drop_every_block():
  with pytest.raises(ValueError, match='actors.max_lag=-1 must be'):
    actor_settings.Config(max_lag=-1)
