"""Configs, rows and states as strict JSON, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

from murmuration.run_records import durable

_NON_FINITE = {'inf': math.inf, '-inf': -math.inf, 'nan': math.nan}


def encode(value: Any) -> Any:
  """Turns configs and rows into what strict JSON can hold.

  Takes dataclasses, mappings, sequences, sets, paths, NumPy arrays and scalars.
  Non-finite floats become the strings 'inf', '-inf', 'nan'.

  Raises:
    TypeError: names the type that has no place in JSON.
  """
  if value is None or isinstance(value, (bool, str)):
    return value
  if isinstance(value, (int, np.integer)):
    return int(value)
  if isinstance(value, (float, np.floating)):
    value = float(value)
    if math.isfinite(value):
      return value
    return 'nan' if math.isnan(value) else ('inf' if value > 0 else '-inf')
  if isinstance(value, np.bool_):
    return bool(value)
  if isinstance(value, np.ndarray):
    return encode(value.tolist())
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {
      field.name: encode(getattr(value, field.name))
      for field in dataclasses.fields(value)
    }
  if isinstance(value, Mapping):
    return {str(key): encode(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [encode(item) for item in value]
  if isinstance(value, (set, frozenset)):
    return sorted((encode(item) for item in value), key=str)
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  raise TypeError(
    f'{type(value).__name__} cannot be written as JSON: {value!r}. Give '
    'numbers, strings, lists, dicts, dataclasses or NumPy arrays.'
  )


def write(path: str | os.PathLike[str], value: Any) -> None:
  """Writes indented JSON so that a reader sees the old file or the new one."""
  path = pathlib.Path(path)
  text = json.dumps(encode(value), indent=2, allow_nan=False) + '\n'
  durable.replace(path, lambda file: file.write(text.encode()))


def read(path: str | os.PathLike[str]) -> Any:
  """Reads what `write` wrote, non-finite numbers included.

  Raises:
    ValueError: it is no JSON.
  """
  text = pathlib.Path(path).read_text(encoding='utf-8')
  try:
    return decode(json.loads(text))
  except RecursionError as e:
    raise ValueError('brackets in brackets, without end') from e


def decode(value: Any) -> Any:
  """What `encode` made strings of, as numbers again."""
  if isinstance(value, str):
    return _NON_FINITE.get(value, value)
  if isinstance(value, list):
    return [decode(item) for item in value]
  if isinstance(value, dict):
    return {key: decode(item) for key, item in value.items()}
  return value


def flat(config: Any, name: str = '') -> Iterator[tuple[str, Any]]:
  """('agent.learning_rate', 0.001) and so on."""
  if isinstance(config, dict):
    for key, value in config.items():
      yield from flat(value, f'{name}.{key}' if name else key)
  else:
    yield name, config
