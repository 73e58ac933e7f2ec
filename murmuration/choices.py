"""From the words of `train` to a cell: which settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import difflib
import inspect
from typing import Any

from murmuration import news
from murmuration import runs
from murmuration.launch import cell as cell_lib
from murmuration.launch import registry
from murmuration.run_records import settings as settings_lib

# What other libraries call arguments of `train`.
_ELSEWHERE = {
  'env': 'environment',
  'env_id': 'environment',
  'total_timesteps': 'steps',
  'timesteps': 'steps',
  'verbose': 'progress',
  'log_dir': 'run_dir',
  'callback': 'on_evaluation',
}


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
    environment: None: that of the preset.
    topology: None: the agent's own.
    settings: as for `named`.
    steps: of each agent; None: of the preset.
    seed: of the run.

  Raises:
    ValueError: what cannot be, with the reason.
  """
  name, preset = registry.split(agent)
  found = registry.agent(name)
  chosen: dict[str, Any] = {}
  if environment:
    chosen['environment'] = environment
  place = registry.topology(topology or found.topology)
  others = _arguments(runs.train)
  chosen.update(named(settings, cell_lib.classes(found, place), others))
  made = cell_lib.resolve(name, preset, topology, chosen, seed)
  if steps is None:
    return made
  chosen = _with_budget(chosen, steps)
  chosen = {**cell_lib.falling(made, chosen), **chosen}
  return cell_lib.resolve(name, preset, topology, chosen, seed)


def resumed(
  config: Mapping[str, Any],
  settings: Mapping[str, Any],
  steps: int | None,
  totals: Mapping[str, int],
) -> cell_lib.Cell:
  """The cell that goes on with a run.

  Args:
    config: the run's config.json.
    settings: as for `named`.
    steps: more of each agent; None: up to the budget that it has.
    totals: what the run has made.

  Raises:
    ValueError: what cannot be, with the reason.
  """
  kept = cell_lib.resume(config)
  others = _arguments(runs.Run.resume)
  for name in ('environment', 'topology', 'seed', 'run_dir'):
    others[name] = f'{name}= is that of the run. Leave it out.'
  classes = cell_lib.classes(kept.agent, kept.topology)
  chosen = named(settings, classes, others)
  if steps is not None:
    # Offline they are counted by pace and batch, which may change as well.
    going_on = cell_lib.resume(config, chosen)
    made = news.steps_made(totals, steps_per_update(going_on))
    steps += made // kept.experiment.num_agents
    chosen = _with_budget(chosen, steps)
  return cell_lib.resume(config, chosen)


def _with_budget(chosen: Mapping[str, Any], steps: int) -> dict[str, Any]:
  if 'run.steps_per_agent' in chosen:
    raise ValueError(
      'steps and steps_per_agent say the same. Give one of them.'
    )
  return {**chosen, 'run.steps_per_agent': steps}


def steps_per_update(cell: cell_lib.Cell) -> float | None:
  """Environment steps in which a run without actors would make an update.

  None where there are actors, whose steps are counted.
  """
  if cell.topology.SECTION != 'offline':
    return None
  experiment = cell.experiment
  return experiment.pace.steps_per_update(experiment.agent.batch_size)


def _arguments(call: Callable[..., Any]) -> dict[str, str]:
  """The arguments of a call, and what is said of a setting that is alike."""
  found = inspect.getfullargspec(call)
  meant = {name: name for name in found.args + found.kwonlyargs}
  return {
    name: f'Did you mean the argument {argument}=?'
    for name, argument in {**_ELSEWHERE, **meant}.items()
  }


def named(
  settings: Mapping[str, Any],
  classes: Mapping[str, type],
  others: Mapping[str, str] | None = None,
) -> dict[str, Any]:
  """Settings as 'section.name' to their values.

  Args:
    settings: 'name', 'section.name', or a section to a mapping of names.
    classes: the cell's, by section.
    others: what else may be said there, and a sentence for who says it, or
      nearly so, as a setting.

  Raises:
    ValueError: no section has such a name, or several have, or one is it.
  """
  found: dict[str, Any] = {}
  known = [
    name
    for section, config in classes.items()
    for name in settings_lib.qualified(section, config)
  ]
  for key, value in settings.items():
    if isinstance(value, Mapping):
      found.update({f'{key}.{name}': one for name, one in value.items()})
      continue
    if key in classes:
      raise ValueError(
        f'{key} is no setting but a section of them. Say which: {key}.NAME, '
        f"in Python {key}={{'NAME': ...}}."
      )
    places = [key] if '.' in key else _of_name(key, known)
    if not places:
      places = [_elsewhere(key, known, others or {})]
    if len(places) > 1:
      # No agent={...}: `train` has an argument of that name.
      raise ValueError(
        f'{key} is a setting of several sections: {", ".join(places)}. Say '
        f'which by its whole name; in Python as **{{{places[-1]!r}: ...}}.'
      )
    found[places[0]] = value
  return found


def _of_name(key: str, known: Sequence[str]) -> list[str]:
  return [name for name in known if name.partition('.')[2] == key]


def _elsewhere(key: str, known: list[str], others: Mapping[str, str]) -> str:
  """The setting of another topology, as which it is refused."""
  # Nearer than a setting of which only one word is alike: `step`.
  for other in difflib.get_close_matches(key, others, 1, 0.85):
    raise ValueError(f'There is no setting {key!r}. {others[other]}')
  for place in map(registry.topology, registry.ALL_TOPOLOGIES):
    name = f'{place.SECTION}.{key}'
    if name in settings_lib.qualified(place.SECTION, place.Config):
      if not any(key in one for one in known):
        return name
  raise ValueError(
    f'There is no setting {key!r}.{settings_lib.near(key, known)}'
  )
