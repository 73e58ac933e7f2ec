"""What a helper process does beside training: it plays, reads and draws."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import pathlib
from typing import Any
import warnings

import gymnasium
import numpy as np

from murmuration import given
from murmuration import playing
from murmuration.launch import registry
from murmuration.run_records import film as film_lib
from murmuration.run_records import names
from murmuration.run_records import run_directory

_policies: dict[int, playing.Native] = {}
_numbers = itertools.count()


def take(found: dict[str, Any]) -> None:
  """Makes the caller's objects known by their names.

  Args:
    found: 'objects', name to (object, class of its config or None), and 'ids',
      of gymnasium's registry.
  """
  for name, (thing, config) in found['objects'].items():
    if registry.is_agent_class(thing):
      thing = registry.of_class(thing, config)
    vars(given)[name] = thing
  gymnasium.registry.update(found['ids'])
  if found['ids']:
    # A package that is imported later registers all of its own again.
    warnings.filterwarnings('ignore', '.*Overriding environment')


def evaluate(path: pathlib.Path, episodes: int, seed: int) -> tuple:
  """(mean, std, returns, broken) of whole episodes."""
  run = run_directory.open(path)
  result = playing.evaluate(run, playing.load(run), episodes, seed)
  return result.mean, result.std, result.returns, result.broken


def policy(path: pathlib.Path, gone: Sequence[int] = ()) -> tuple[int, bool]:
  """Keeps the policy of a run, and no more those that are gone.

  Args:
    path: of the run.
    gone: numbers of policies that nobody will ask again.

  Returns:
    Its number, and whether it remembers the episodes that it is in.
  """
  for number in gone:
    _policies.pop(number, None)
  number = next(_numbers)
  made = playing.Native(playing.load(run_directory.open(path)))
  _policies[number] = made
  return number, made.remembers


def act(number: int, observation: Any) -> Any:
  return _policies[number](observation)


def reset(number: int) -> None:
  _policies[number].reset()


def ended(number: int, last: Any) -> None:
  _policies[number].ended(np.asarray(last))


def config(path: pathlib.Path) -> dict[str, Any]:
  return run_directory.open(path).config()


def summary(path: pathlib.Path) -> dict[str, Any] | None:
  return run_directory.open(path).summary()


def metrics(path: pathlib.Path, kind: str) -> list[dict[str, Any]]:
  run = run_directory.open(path)
  names.require('kind of metrics', kind, run.kinds())
  return run.metrics(kind)


def plot(path: pathlib.Path, to: pathlib.Path | None) -> pathlib.Path:
  # It imports matplotlib, which a run starts without.
  from murmuration.run_records import plots

  drawn = plots.learning_curve(path, to)
  if drawn is None:
    raise ValueError(f'{path} has no evaluation to draw yet.')
  return drawn


def film(
  path: pathlib.Path, to: pathlib.Path, seed: int, steps: int
) -> pathlib.Path:
  film_lib.check(to)  # before an episode is played
  run = run_directory.open(path)
  environment = run.config()['environment']
  return playing.record(
    playing.load(run).policy(), environment, seed, to, steps
  )


def export(path: pathlib.Path, to: pathlib.Path, format: str) -> pathlib.Path:
  from murmuration import export as export_lib

  return export_lib.export(path, format, to)


OPERATIONS = {
  operation.__name__: operation
  for operation in (evaluate, policy, act, reset, ended)
  + (config, summary, metrics, plot, film, export)
}
