"""From the words of `train` to a cell: which preset, which settings."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from launch import cell as cell_lib
from launch import registry
from launch import settings as launch_settings


def cell(
  agent: str,
  environment: str | None,
  topology: str | None,
  settings: Mapping[str, Any],
  steps: int | None,
  seed: int,
) -> cell_lib.Cell:
  """The cell that `train` asks for.

  Args:
    agent: AGENT or AGENT:PRESET.
    environment: None: that of the preset. Without a preset, the one of the
      environment is taken, else the first without its target.
    topology: None: the agent's own.
    settings: as for `named`.
    steps: of each agent; None: of the preset.
    seed: of the run.

  Raises:
    ValueError: what cannot be, with the reason.
  """
  name, preset = registry.split(agent)
  presets = registry.agent(name).presets
  if environment and not preset:
    own = (p for p in presets if presets[p].get('environment') == environment)
    preset = next(own, '')
  values = presets.get(preset or next(iter(presets)), {})
  chosen: dict[str, str] = {}
  if environment:
    chosen['environment'] = environment
    if environment != values.get('environment'):
      chosen['run.target_return'] = 'None'
  if steps is not None:
    chosen.update(budget(values, steps))
  sections = cell_lib.resolve(name, preset, topology, chosen, seed).sections
  chosen.update(named(settings, sections))
  return cell_lib.resolve(name, preset, topology, chosen, seed)


def budget(values: Mapping[str, Any], steps: int) -> dict[str, str]:
  """The settings that make `steps` the budget of a preset."""
  found = {'run.steps_per_agent': str(steps)}
  # A rate that falls over the whole run falls over the whole of this one.
  own = values.get('run', {}).get('steps_per_agent')
  if own and values.get('agent', {}).get('anneal_env_steps') == own:
    found['agent.anneal_env_steps'] = str(steps)
  return found


def named(
  settings: Mapping[str, Any], sections: Mapping[str, Any]
) -> dict[str, str]:
  """Settings as 'section.name' to text.

  Args:
    settings: 'name', 'section.name', or a section to a mapping of names.
    sections: of the cell.

  Raises:
    ValueError: no section has such a name, or several have.
  """
  found: dict[str, str] = {}
  known = [
    name
    for section, config in sections.items()
    if dataclasses.is_dataclass(config)
    for name in launch_settings.qualified(section, type(config))
  ]
  for key, value in settings.items():
    if isinstance(value, Mapping):
      found.update({f'{key}.{name}': text for name, text in value.items()})
      continue
    places = (
      [key]
      if '.' in key
      else [name for name in known if name.partition('.')[2] == key]
    )
    if not places:
      raise ValueError(
        f'There is no setting {key!r}.{launch_settings.near(key, known)}'
      )
    if len(places) > 1:
      section = places[0].partition('.')[0]
      raise ValueError(
        f'{key} is a setting of several sections: {", ".join(places)}. Say '
        f'which, as {section}={{{key!r}: ...}}.'
      )
    found[places[0]] = value
  return found
