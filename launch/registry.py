"""What a run is made of, by name: agents, topologies, engines.

An agent is a file in configs/, a topology a line in `TOPOLOGIES`, an engine one
of launch/engines. An agent or a topology of a user's own is `module:Name`,
wherever Python finds the module, and needs no line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import importlib
import pathlib
from typing import Any, Protocol

import launchpad as lp

from murmuration.agents import base
from murmuration.agents import contract
from murmuration.agents import settings as agent_settings
from murmuration.environment_loops import environments
from murmuration.environment_loops import faults
from murmuration.launch import experiment as experiment_lib
from murmuration.run_records import names
from murmuration.run_records import settings

# Names to modules. A topology is what `Topology` says, a module or an object.
TOPOLOGIES = {
  'single_process': 'murmuration.launch.topologies.single_process',
  'actor_learner': 'murmuration.launch.topologies.actor_learner',
  'swarm': 'murmuration.launch.topologies.swarm',
  'evolution': 'murmuration.launch.topologies.evolution',
  'parameter_server': 'murmuration.launch.topologies.parameter_server',
  'gossip': 'murmuration.launch.topologies.gossip',
}
# With those that need more than an agent, such as a data set, and are in no
# table.
ALL_TOPOLOGIES = {
  **TOPOLOGIES,
  'offline': 'murmuration.launch.topologies.offline',
}
_PARTS = ('SECTION', 'Config', 'members', 'build')  # of a topology
# Beside the section of a topology, in a config.json.
_TAKEN = 'agent pace run environment seed topology agent_name'.split()
# The layer above: imported by name, when it is asked for.
_CONFIGS = 'murmuration.configs'


@dataclasses.dataclass(frozen=True)
class Agent:
  """What a command line names: classes, a default topology, presets.

  Attributes:
    name: in configs/, and of run directories.
    title: in tables.
    agent: makes the agent: agent(config(**numbers), spec).
    config: frozen dataclass of the section `agent`.
    topology: where it runs if no other is asked for.
    presets: name to {'environment': id} and the numbers that are not defaults,
      a dict for each section: 'agent', 'pace', 'run', and those of topologies
      ('actors', 'swarm', 'gossip', ...). The first is the default.
  """

  name: str
  title: str
  agent: Callable[[Any, environments.Spec], base.Agent]
  config: Any
  topology: str
  presets: Mapping[str, Mapping[str, Any]]


class Topology(Protocol):
  """What a topology has.

  Attributes:
    SECTION: name of its section on the command line.
    Config: frozen dataclass of that section.

  It may have REPLAY, the default of `run.replay` there, and
  `ignored(agent, config) -> {name: why}`: settings of its section (others by
  section.name) that a run would ignore, and that are refused on a command line.
  """

  SECTION: str
  Config: Any

  def members(self, config: Any) -> int:
    """Agents in the whole program, `Experiment.num_agents`."""
    ...

  def build(
    self, experiment: experiment_lib.Experiment, config: Any
  ) -> lp.Program:
    """The program, not started; ValueError for what cannot work."""
    ...


def swarm_of(
  agent: Agent,
  swarm: Mapping[str, Any] | None = None,
  of_preset: Mapping[str, Mapping[str, Any]] | None = None,
) -> Agent:
  """The same agent as an explorer of a swarm.

  `swarm` are numbers of that section in all presets, and `of_preset` in some,
  by their names.
  """
  return dataclasses.replace(
    agent,
    name=f'pso_{agent.name}',
    title=f'PSO-{agent.title}',
    topology='swarm',
    presets={
      name: {
        **preset,
        'swarm': {**(swarm or {}), **(of_preset or {}).get(name, {})},
      }
      for name, preset in agent.presets.items()
    },
  )


def is_alias(name: str) -> bool:
  """Whether an agent is another one by the name of a topology's presets."""
  return agent(name).topology not in ('single_process', 'actor_learner')


def agents() -> list[str]:
  """Names in configs/."""
  directory = pathlib.Path(__file__).resolve().parents[1] / 'configs'
  return sorted(
    path.stem for path in directory.glob('*.py') if path.stem[0] != '_'
  )


def split(word: str) -> tuple[str, str]:
  """'ppo:hopper' as ('ppo', 'hopper'); 'module:Name:hopper' likewise.

  The preset is '' where none is named.
  """
  name, _, preset = word.partition(':')
  if preset and name not in agents():
    own, _, preset = preset.partition(':')
    name = f'{name}:{own}'
  return name, preset


def agent(name: str) -> Agent:
  """The agent of a name, or of `module:Name`; ValueError if there is none."""
  if name in agents():
    return importlib.import_module(f'{_CONFIGS}.{name}').AGENT
  found = names.own('agent', name, _is_agent)
  if found is None:
    names.unknown('agent', name.partition(':')[0], agents(), names.OWN)
  if is_agent_class(found):
    found = of_class(found)
  if not isinstance(found, Agent):
    raise ValueError(
      f'{name} is {names.kind(found)}, not an agent: it has to be a '
      'murmuration.launch.registry.Agent, or a subclass of '
      'murmuration.agents.base.Agent.'
    )
  made: Any = found.agent
  if is_agent_class(made):
    contract.check_class(made, found.config)
  return found


def _is_agent(found: Any) -> bool:
  return isinstance(found, Agent) or is_agent_class(found)


def is_agent_class(found: Any) -> bool:
  return isinstance(found, type) and issubclass(found, base.Agent)


def of_class(found: type[base.Agent], config: Any = None) -> Agent:
  """An agent with one preset, which names no environment.

  It is made as `found(config, spec)`. `config` is the class of its config;
  None: what it says (`base.Agent.config_class`).
  """
  if config is None:
    try:
      config = found.config_class()
    except ValueError:
      raise
    except Exception as e:  # of any expression
      raise agent_settings.unreadable(found, e) from e
  if not dataclasses.is_dataclass(config):
    raise ValueError(
      f'{found.__name__} does not say of which class its config is: write '
      '`config: Config` in its body, or def __init__(self, config: Config, '
      'spec), where Config is a frozen dataclass of its numbers.'
    )
  title = found.__name__
  return Agent(
    getattr(found, 'name', title),
    title,
    found,
    config,
    'single_process',
    {'default': {}},
  )


def topology(name: str) -> Topology:
  """The topology of a name or `module:Name`; ValueError if there is none."""
  if name in ALL_TOPOLOGIES:
    found: Any = importlib.import_module(ALL_TOPOLOGIES[name])
    return found
  found = names.own(
    'topology', name, lambda one: all(hasattr(one, part) for part in _PARTS)
  )
  if found is None:
    names.unknown('topology', name, ALL_TOPOLOGIES, names.OWN)
  for part in _PARTS:
    if not hasattr(found, part):
      raise ValueError(
        f'{name} is {names.kind(found)} without {part}: a topology has '
        'SECTION, Config, members and build, as '
        'launch/topologies/single_process.py.'
      )
  _check_section(name, found)
  return found() if isinstance(found, type) else found


def _check_section(name: str, found: Any) -> None:
  """Refuses settings of a user's topology that would be taken for others."""
  section, config = found.SECTION, found.Config
  if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
    raise ValueError(
      f'{name} has a Config that is {names.kind(config)}, not a frozen '
      'dataclass of the settings of its section.'
    )
  if not (isinstance(section, str) and section.isidentifier()):
    raise ValueError(
      f'{name} has SECTION={section!r}, but --config.SECTION.NAME needs a word.'
    )
  # Of one with the same settings it may have the section, and the presets.
  others = [
    other
    for other in map(topology, ALL_TOPOLOGIES)
    if other.SECTION == section and not issubclass(config, other.Config)
  ]
  if section in _TAKEN or others:
    raise ValueError(
      f'{name} has SECTION={section!r}, but the section {section!r} is taken: '
      'a run has other settings of that name. Give it another.'
    )


def make(config: Mapping[str, Any]) -> base.Agent:
  """The agent of a run, from its config; ValueError if it cannot be made."""
  found = agent(str(config.get('agent_name')))
  for name, kind in (('agent', Mapping), ('environment', str)):
    if not isinstance(config.get(name), kind):
      raise ValueError(
        f'its config.json has no {name!r} that can be read. Put the file back '
        'from a copy.'
      )
  made = settings.make('agent', found.config, config['agent'])
  return first_made(found, made, environments.spec(config['environment']))


def first_made(
  found: Agent, config: Any, spec: environments.Spec
) -> base.Agent:
  """The agent, as it is made before anything runs.

  Raises:
    ValueError: it does not fit into memory, or its class lacks something.
    RuntimeError: making it raised something else; names what was made.
  """
  try:
    return found.agent(config, spec)
  except (ValueError, OSError):
    raise
  except MemoryError as e:
    raise ValueError(
      f'The parameters of {found.name} do not fit into memory: {e}. Lower the '
      'sizes of its networks.'
    ) from e
  except Exception as e:
    said = contract.unmade(e) if isinstance(e, AttributeError) else None
    if said is not None:
      raise said from e
    named = getattr(found.agent, '__name__', found.name)
    raise RuntimeError(
      f'{named}(config, spec) could not be made: {faults.gist(e)}'
    ) from e
