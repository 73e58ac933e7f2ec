"""Settings from the command line, and as a list."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

import pytest

from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import settings


@dataclasses.dataclass(frozen=True)
class _Base:
  size: int = 3  # units
  rate: float | None = 0.5  # per update; None: it stays


@dataclasses.dataclass(frozen=True)
class _Config(_Base):
  rate: float | None = 0.25  # of this one
  # A chance that
  # takes two lines.
  chance: float = 0.0
  kinds: tuple[int, ...] = (1, 2)
  most: int | None = None
  on: bool = False
  word: str = 'a'
  loss: Literal['huber', 'squared'] = 'huber'

  def __post_init__(self):
    if self.size < 0:
      raise ValueError('size is below 0')


@dataclasses.dataclass(frozen=True)
class _Unreadable:
  size: int = 3
  rate: Unknown = 0.5  # type: ignore[name-defined]  # noqa: F821


@dataclasses.dataclass(frozen=True)
class _Needs:
  data: str


_CLASSES = {'agent': _Config, 'mine': _Base}


@pytest.mark.parametrize(
  'name, text, value',
  [
    ('size', '1_000', 1000),
    ('size', '-1', -1),  # whose bounds are checked later
    ('size', '1e5', 100_000),
    ('most', '2e2', 200),
    ('most', 'None', None),
    ('rate', '1e-3', 1e-3),
    ('rate', '2', 2.0),
    ('rate', '-2e2', -200.0),
    ('rate', 'None', None),
    ('kinds', '(3,)', (3,)),
    ('kinds', '3, 4', (3, 4)),
    ('on', 'True', True),
    ('on', 'False', False),
    ('word', 'None', 'None'),
    ('word', '', ''),
    ('word', '--b=c d', '--b=c d'),
    ('loss', 'squared', 'squared'),
  ],
)
def test_a_text_is_what_its_setting_can_be(name, text, value):
  kept = {'agent': {'chance': 0.5, 'on': True}, 'mine': {'size': 9}}
  found = settings.changed(_CLASSES, kept, {f'agent.{name}': text})
  config = {**dataclasses.asdict(_Config(chance=0.5, on=True)), name: value}
  assert found == {'agent': config, 'mine': {'size': 9}}
  assert type(found['agent'][name]) is type(value)


@pytest.mark.parametrize(
  'name, text',
  [
    ('size', '1.5'),
    ('size', '1e999'),
    ('size', '2.0'),
    ('size', 'True'),
    ('size', 'None'),
    ('size', ''),
    ('rate', 'fast'),
    ('on', '2'),
    ('kinds', '(1'),
    ('kinds', '(1.5,)'),
    ('loss', 'none'),
    ('sise', '3'),
  ],
)
def test_another_text_is_refused_with_the_name_of_the_setting(name, text):
  with pytest.raises(ValueError, match=f'--config.agent.{name}'):
    settings.changed(_CLASSES, {}, {f'agent.{name}': text})


def test_a_near_name_is_said_of_whichever_section_has_it():
  for said, meant in (
    ('agent.chanse', 'agent.chance'),
    ('min.size', 'mine.size'),
  ):
    with pytest.raises(ValueError, match=f'--config.{meant} '):
      settings.changed(_CLASSES, {}, {said: '1', 'agent.on': 'True'})


def test_a_setting_without_a_default_may_come_from_the_command_line():
  found = settings.changed({'mine': _Needs}, {}, {'mine.data': 'there'})
  assert found == {'mine': {'data': 'there'}}


def test_annotations_that_cannot_be_read_are_refused():
  with pytest.raises(ValueError, match='_Unreadable.*Unknown'):
    settings.changed({'mine': _Unreadable}, {}, {'mine.size': '4'})


def test_lists_of_json_are_tuples_and_unknown_names_are_refused():
  assert settings.make('agent', _Config, {'kinds': [7]}).kinds == (7,)
  found = settings.changed(
    _CLASSES, {'agent': {'kinds': [7]}}, {'agent.size': '4'}
  )
  assert found['agent']['kinds'] == (7,)
  with pytest.raises(ValueError, match=r'agent\.chanse'):
    settings.make('agent', _Config, {'chanse': 1.0})
  with pytest.raises(ValueError, match=r'agent\.chanse'):
    settings.changed(_CLASSES, {'agent': {'chanse': 1}}, {'agent.size': '4'})


def test_a_list_has_the_name_value_and_comment_of_each_setting():
  text = settings.listing(
    {'environment': 'Here-v1', 'agent': _Config(size=7), 'mine': _Base()},
    {'agent.on': 'it is off'},
  )
  said = ' '.join(text.split())
  for name, comment, value in (
    ('agent.size', 'units', '7'),
    ('agent.rate', 'of this one', '0.25'),
    ('agent.chance', 'A chance that takes two lines.', '0.0'),
    ('mine.rate', 'per update; None: it stays', '0.5'),
  ):
    assert re.search(
      rf'--config\.{name} \S+ {re.escape(comment)} \(default: {value}\)', said
    ), (name, text)
  assert '--config.environment' in said and 'Here-v1' in said
  assert 'agent.on changes nothing here: it is off.' in said


def test_every_setting_of_the_project_says_what_it_is():
  cells = [cell_lib.resolve(name) for name in registry.agents()]
  sections = [section for cell in cells for section in cell.sections.values()]
  configs = {type(one): one for one in sections if not isinstance(one, str)}
  named = {f's{i}': config for i, config in enumerate(configs.values())}
  text = settings.listing(named, {})
  # A name and a type, and below them the comment.
  found = re.findall(r'--config\.(\w+\.\w+) .*\n\s+(\S+)', text)
  known = [
    name
    for section, config in named.items()
    for name in settings.qualified(section, type(config))
  ]
  assert [name for name, _ in found] == known
  assert '(default:' not in [comment for _, comment in found], found


@pytest.mark.parametrize(
  'word, meant',
  [
    ('learning_rat', 'agent.learning_rate'),
    ('run.step_per_agent', 'run.steps_per_agent'),
    ('agent.zzz', None),
  ],
)
def test_the_setting_that_was_meant_is_named(word, meant):
  known = ['agent.learning_rate', 'run.steps_per_agent']
  said = settings.near(word, known)
  assert meant in said if meant else '--list-settings' in said
