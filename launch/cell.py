"""One cell of agents x topologies, with all its numbers: what a run is.

    cell = resolve('dqn', topology='swarm', overrides={'run.replay': 'node'})
    program = cell.build(run_dir)

`cell.config` is the run's config.json, and `resume` makes the cell of it again.
Its sections are those that the cell uses: what would be ignored is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import launchpad as lp

from murmuration.agents import contract
from murmuration.agents import settings as agent_settings
from murmuration.environment_loops import atari
from murmuration.environment_loops import environments
from murmuration.environment_loops import making
from murmuration.environment_loops import vector
from murmuration.launch import experiment as experiment_lib
from murmuration.launch import graph
from murmuration.launch import registry
from murmuration.run_records import names
from murmuration.run_records import settings

# What a run that goes on may change: no checkpoint depends on it.
RESUMABLE = frozenset(
  f'{section}.{name}'
  for section, listed in {
    'agent': 'learning_rate policy_learning_rate critic_learning_rate '
    'temperature_learning_rate anneal_env_steps anneal_updates anneal_after '
    'max_gradient_norm adam_epsilon rmsprop_epsilon entropy_cost '
    'baseline_cost value_cost clip value_clip target_kl target_entropy '
    'target_update_period target_update_tau max_replay_size min_replay_size '
    'importance_exponent exploration epsilon epsilon_alpha epsilon_start '
    'epsilon_end epsilon_steps sigma noise_theta random_steps '
    'smoothing_sigma smoothing_limit max_dq_da',
    'pace': 'samples_per_insert',
    'run': 'steps_per_agent target_return wall_clock_s evaluations '
    'eval_episodes eval_epsilon eval_max_steps updates_per_call '
    'replay_checkpoint_s tf_threads on_fault max_restarts restart_window_s '
    'silent_s stall_s needs_network background_niceness',
    'actors': 'num_actors envs_per_actor update_period max_param_age_s '
    'error_buffer num_learners queue_batches max_lag inference '
    'inference_max_wait_ms inference_max_batch',
    'swarm': 'k b c_max window idle_episodes claim_episodes pull_every '
    'offer_after_updates star_poll_steps trial_timeout_s '
    'confirmation_period_s',
    'evolution': 'num_workers pairs_per_task envs_per_worker learning_rate '
    'sigma weight_decay patience_s',
    'server': 'max_staleness outlier_sigmas checkpoint_period',
    'gossip': 'peers_per_iteration avg_period tau',
    'offline': 'data',
  }.items()
  for name in listed.split()
)
_PLAIN = ('seed', 'topology', 'agent_name')  # of a config.json, beside sections


class Unused(ValueError):
  """A setting that was given would change nothing.

  Attributes:
    key: its name.
  """

  def __init__(self, key: str, why: str):
    super().__init__(f'{key} would change nothing here: {why}. Leave it out.')
    self.key = key


@dataclasses.dataclass(frozen=True)
class Cell:
  """An agent on a topology."""

  agent: registry.Agent
  topology: registry.Topology
  experiment: experiment_lib.Experiment  # what a program is built of
  sections: dict[str, Any]  # name to config, of all that can be set
  config: dict[str, Any]  # the same as config.json holds it
  unused: dict[str, str]  # settings that would change nothing here, and why
  # Settings of the agent as a preset has them that is of another environment.
  borrowed: frozenset[str] = frozenset()
  # Of a resumed run: the earlier budget, over which learning rates fell, if
  # they fall over a new one now.
  fell_over: int | None = None

  def build(self, run_dir: str | None = None) -> lp.Program:
    """The program, not started; ValueError says why it cannot work."""
    experiment = dataclasses.replace(self.experiment, run_dir=run_dir)
    section = self.sections[self.topology.SECTION]
    program = self.topology.build(experiment, section)
    if not isinstance(program, lp.Program):
      raise ValueError(
        f'build of the topology {self.config["topology"]} returned '
        f'{names.kind(program)}, but has to return the lp.Program that it '
        'made: let it end with `return program`.'
      )
    graph.check(program)
    return program


def resolve(
  agent: str,
  preset: str = '',
  topology: str | None = None,
  overrides: Mapping[str, str] | None = None,
  seed: int = 0,
) -> Cell:
  """The cell of a command line; ValueError for what is refused.

  Args:
    agent: name, or module:Name.
    preset: of the agent; '' is the one of the environment that `overrides`
      say, if there is one, else its first.
    topology: name or module:Name; None is the agent's own.
    overrides: 'section.name' or 'environment' to what the command line says,
      or to a value.
      Another environment than the preset's leaves out the preset's
      `run.target_return`, which is of that task.
    seed: of the whole run.
  """
  found = registry.agent(agent)
  if preset:
    names.require(
      f'preset of {agent}',
      preset,
      found.presets,
      'Or start from one and set --config.environment',
    )
  overrides = overrides or {}
  task, presets = overrides.get('environment'), found.presets
  of_task = (
    name
    for name, values in presets.items()
    if task and atari.same_task(values.get('environment'), task)
  )
  # An agent without presets has its defaults.
  preset = preset or next(of_task, next(iter(presets), ''))
  values = presets[preset] if presets else {}
  name = topology or found.topology
  _check_sections(values, name, found.topology)
  own = values.get('environment')
  borrowed: set[str] = set()
  if not atari.same_task(overrides.get('environment', own), own):
    run = {**values.get('run', {}), 'target_return': None}
    values = {**values, 'run': run}
    borrowed = {f'agent.{name}' for name in values.get('agent', {})}
  made = _cell(agent, name, values, overrides, seed)
  kept = frozenset(borrowed.difference(overrides))
  return dataclasses.replace(made, borrowed=kept)


def classes(
  agent: registry.Agent, topology: registry.Topology
) -> dict[str, type]:
  """The sections of a cell, and the class of each."""
  return {
    'agent': agent.config,
    'pace': experiment_lib.Pace,
    topology.SECTION: topology.Config,
    'run': experiment_lib.RunConfig,
  }


def resume(
  config: Mapping[str, Any], overrides: Mapping[str, str] | None = None
) -> Cell:
  """The cell of a config.json; what is newer than it has its default.

  Raises:
    ValueError: it is of an older version, or an override is refused, or is not
      in RESUMABLE.
  """
  missing = [name for name in _PLAIN if name not in config]
  if missing:
    raise ValueError(
      f'its config.json has no {missing[0]!r}: it was made by an older '
      'version, with which it can go on. Start a new run here.'
    )
  values = {k: v for k, v in config.items() if k not in _PLAIN}
  wanted = {'agent_name': str, 'topology': str, 'seed': int, 'environment': str}
  broken = [
    name
    for name, value in config.items()
    if not isinstance(value, wanted.get(name, dict))
  ]
  if broken or 'environment' not in config:
    raise ValueError(
      f'its config.json has no {(broken or ["environment"])[0]!r} that can be '
      'read. Put the file back from a copy, or start a new run.'
    )
  made = config['agent_name'], config['topology'], values
  kept = _cell(*made, {}, config['seed'])
  if not overrides:
    return kept
  with_budget = {**falling(kept, overrides), **overrides}
  found = _cell(*made, with_budget, config['seed'])
  _check_resumable(kept, found)
  if len(with_budget) > len(overrides):
    fell = kept.experiment.run.steps_per_agent
    found = dataclasses.replace(found, fell_over=fell)
  return found


def falling(cell: Cell, overrides: Mapping[str, str]) -> dict[str, str]:
  """What lets rates that fall over a whole run fall over another budget."""
  agent, run = cell.config['agent'], cell.config['run']
  budget, falls = overrides.get('run.steps_per_agent'), 'agent.anneal_env_steps'
  whole = agent.get('anneal_env_steps') == run['steps_per_agent']
  if budget is None or not whole or falls in cell.unused:
    return {}
  return {falls: budget}


def _cell(
  agent_name: str,
  topology_name: str,
  values: Mapping[str, Any],
  overrides: Mapping[str, str],
  seed: int,
) -> Cell:
  agent = registry.agent(agent_name)
  topology = registry.topology(topology_name)
  kinds = classes(agent, topology)
  for key in overrides:
    _check_topology(key, kinds, topology_name)
  environment = overrides.get('environment', values.get('environment'))
  if environment is None:
    raise ValueError(
      f'which environment? {agent_name} has no preset that says. Set '
      '--config.environment=ID.'
    )
  with making.Watched(environment):
    spec = environments.spec(environment)
    vector.check(environment)

  place = getattr(topology, 'REPLAY', 'colocated')
  if spec.observation_dtype != 'uint8':  # Reverb compresses images.
    values = {**values, 'run': {'replay': place, **values.get('run', {})}}
  chosen = {key: x for key, x in overrides.items() if key != 'environment'}
  texts = {key: x for key, x in chosen.items() if isinstance(x, str)}
  changed = settings.changed(kinds, values, texts)
  for key in chosen.keys() - texts:
    part, _, field = key.partition('.')
    known = [name for one in kinds.items() for name in settings.qualified(*one)]
    if key not in known:
      raise ValueError(f'There is no setting {key}.{settings.near(key, known)}')
    changed[part] = {**changed.get(part, {}), field: chosen[key]}

  def section(name: str) -> Any:
    return settings.make(name, kinds[name], changed.get(name, {}))

  agent_config = section('agent')
  make_agent = functools.partial(agent.agent, agent_config, spec)
  made_agent = registry.first_made(agent, agent_config, spec)
  contract.check(made_agent)
  if made_agent.unroll_length is not None:
    del kinds['pace']
    for key in overrides:
      if key.startswith('pace.'):
        raise Unused(key, 'it is of agents that sample replay')
  sections = {name: section(name) for name in kinds}
  unused = {}
  for key, why in made_agent.ignored.items():
    unused[key if '.' in key else f'agent.{key}'] = why
  for name, made in sections.items():
    if dataclasses.is_dataclass(made):
      unused |= agent_settings.ignored(made, name)
  ignored: Any = getattr(topology, 'ignored', lambda agent, config: {})
  unused |= ignored(made_agent, sections[topology.SECTION])
  if made_agent.updates_per_call is not None:
    why = f'{made_agent.name} makes {made_agent.updates_per_call} in each call'
    unused['run.updates_per_call'] = why
  if made_agent.experience == 'unrolls':
    why = 'it learns from unrolls, which are not kept'
    unused['run.replay_checkpoint_s'] = why
  unused = {
    name if '.' in name else f'{topology.SECTION}.{name}': why
    for name, why in unused.items()
  }
  for key, why in unused.items():
    if key in overrides:
      raise Unused(key, why)
  if sections['run'].deterministic:
    _check_deterministic(topology, sections['run'])
  largest, least = _replay_sizes(made_agent, agent_config)
  experiment = experiment_lib.Experiment(
    make_agent=make_agent,
    environment=environment,
    num_agents=topology.members(sections[topology.SECTION]),
    max_replay_size=largest,
    min_replay_size=least,
    pace=sections.get('pace', experiment_lib.Pace()),
    seed=seed,
    run=sections['run'],
    made=(make_agent, made_agent),
  )
  config = {
    'environment': environment,
    **{
      name: {
        field: getattr(made, field) for field in settings.names(kinds[name])
      }
      for name, made in sections.items()
    },
    'seed': seed,
    'topology': topology_name,
    'agent_name': agent_name,
  }
  return Cell(
    agent,
    topology,
    experiment,
    {'environment': environment, **sections},
    config,
    unused,
  )


def _replay_sizes(agent: Any, config: Any) -> tuple[int, int]:
  """Transitions that replay keeps, and holds before learning begins."""
  sizes = ('max_replay_size', 'min_replay_size')
  if agent.unroll_length is not None:
    return 1, 1  # a queue has neither
  missing = [name for name in sizes if not hasattr(config, name)]
  if missing:
    raise ValueError(
      f'{agent.name} learns from transitions, and {type(config).__name__} has '
      f'no {" and no ".join(missing)}: how many replay keeps, and how many it '
      'holds before learning begins. Give it these fields, as '
      'murmuration.agents.replay_agent.Config has them, or set unroll_length '
      'for an agent that learns from unrolls.'
    )
  return config.max_replay_size, config.min_replay_size


def _check_resumable(kept: Cell, found: Cell) -> None:
  """Refuses a run that goes on with what its checkpoints may not fit."""
  other = [
    f'{section}.{name}'
    for section, values in found.config.items()
    if isinstance(values, dict)
    for name, value in values.items()
    if value != kept.config.get(section, {}).get(name)
  ]
  other = [name for name in other if name not in RESUMABLE]
  tasks = [cell.experiment.environment for cell in (kept, found)]
  if not atari.same_task(*tasks):
    other.append('environment')
  if other:
    raise ValueError(
      f'a run that goes on keeps its {" and ".join(other)}. Leave that out, or '
      'start a new run.'
    )


def _check_topology(key: str, kinds: Mapping[str, Any], topology: str) -> None:
  """Refuses a setting of another topology."""
  section = key.partition('.')[0]
  if section in kinds or section == 'environment':
    return
  for other in registry.ALL_TOPOLOGIES:
    if section == registry.topology(other).SECTION:
      raise ValueError(
        f'{key} is a setting of {other}; this run is {topology}. Leave it out, '
        f'or set --topology={other}.'
      )


def _check_deterministic(topology: Any, run: experiment_lib.RunConfig) -> None:
  """Refuses what no seed can repeat."""
  if topology.SECTION != 'single':
    raise ValueError(
      'run.deterministic=True is for one process: how the processes of this '
      'topology take turns follows from no seed. Set --topology=single_process.'
    )
  if run.tf_threads != 1:
    raise ValueError(
      f'run.deterministic=True needs run.tf_threads=1, not {run.tf_threads}: '
      'how threads share out a sum changes its last bits.'
    )


def _check_sections(values: Mapping[str, Any], *topologies: str) -> None:
  """Refuses a preset whose sections nobody reads."""
  known = {'environment', 'agent', 'pace', 'run'}
  known |= {registry.topology(name).SECTION for name in topologies}
  if known >= set(values):
    return  # without an import of the other topologies
  known |= {registry.topology(name).SECTION for name in registry.ALL_TOPOLOGIES}
  for section in values:
    names.require('section of a preset', section, sorted(known))
