"""What the preset files share: choosing one, and frozen configs as dicts."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from ml_collections import config_dict

from launch import actors


def choose(presets: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
  """The preset of a name.

  Raises:
    ValueError: no such preset; the message names them.
  """
  if name not in presets:
    raise ValueError(
      f'There is no preset {name!r}. Choose one of {sorted(presets)}, or '
      'start from one and set --config.environment.'
    )
  return presets[name]


def paced(agent: Any) -> actors.Config:
  """Actors with the ratio of learning to acting that the agent has alone.

  Args:
    agent: config with `batch_size` and `env_steps_per_update`.
  """
  ratio = agent.batch_size / agent.env_steps_per_update
  return actors.Config(samples_per_insert=ratio)


def fields(config: Any) -> dict[str, Any]:
  """A frozen config as a dict; a field that may be None takes any literal."""
  found = {}
  for field in dataclasses.fields(config):
    if field.init:
      value = getattr(config, field.name)
      if 'None' in str(field.type):
        value = config_dict.FieldReference(value, field_type=object)
      found[field.name] = value
  return found
