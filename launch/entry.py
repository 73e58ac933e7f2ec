"""What the run_*.py scripts share between the command line and a topology."""

from __future__ import annotations

from collections.abc import Callable
import functools
import pathlib
import sys
from typing import Any

from absl import flags
import launchpad as lp

from agents import base
from environment_loops import environments
from launch import actors
from launch import command_line
from launch import experiment as experiment_lib
from launch import session
from launch.topologies import actor_learner
from launch.topologies import single_process
from run_records import run_directory


def make_experiment(
  settings: command_line.Settings,
  agent_class: Callable[..., base.Agent],
  config_class: Any,
  num_agents: int = 1,
) -> experiment_lib.Experiment:
  """The experiment of a command line.

  Args:
    settings: of the command line; its config has the sections environment,
      agent and run.
    agent_class: makes the agent: agent_class(agent_config, spec).
    config_class: frozen dataclass of the section `agent`.
    num_agents: members in the whole program.

  Raises:
    command_line.UsageError: with the reason.
  """
  config = settings.config
  agent_config = command_line.make(config_class, config.agent)
  spec = command_line.environment_spec(config.environment)
  make_agent = functools.partial(agent_class, agent_config, spec)
  try:
    make_agent()
  except (environments.EnvironmentRefused, ValueError) as e:
    raise command_line.UsageError(str(e)) from e
  return command_line.make(
    experiment_lib.Experiment,
    {
      'make_agent': make_agent,
      'environment': config.environment,
      'num_agents': num_agents,
      # A queue has neither.
      'max_replay_size': getattr(agent_config, 'max_replay_size', 1),
      'min_replay_size': getattr(agent_config, 'min_replay_size', 1),
      'env_steps_per_update': getattr(agent_config, 'env_steps_per_update', 1),
      'seed': settings.seed,
      'run': command_line.make(experiment_lib.RunConfig, config.run),
    },
  )


def main(
  name: str,
  config_file: pathlib.Path,
  agent_class: Callable[..., base.Agent],
  config_class: Any,
) -> int:
  """A script that runs one agent with actors and a learner, or alone.

  Args:
    name: of the agent, for the directory and the registry.
    config_file: its presets, with sections environment, agent, actors, run.
    agent_class: see `make_experiment`.
    config_class: likewise.

  Returns:
    The exit code, see `session.run`.
  """
  command_line.define_flags(config_file)
  flags.DEFINE_enum(
    'topology',
    'actor_learner',
    ['actor_learner', 'single_process'],
    'Actors and a learner as nodes, or one process that does everything.',
    module_name=sys.argv[0],  # the script's own, for --help and the settings
  )
  try:
    settings = command_line.parse(sys.argv)
    experiment = make_experiment(settings, agent_class, config_class)
    config = command_line.make(actors.Config, settings.config.actors)
    topology = topology_of(settings)
  except command_line.UsageError as e:
    command_line.fail(str(e))

  def build(run_dir: str) -> lp.Program:
    kept = experiment_lib.in_directory(experiment, run_dir)
    if topology == 'single_process':
      return single_process.build(kept)
    return actor_learner.build(kept, config)

  resolved = {
    **settings.config.to_dict(),
    'seed': settings.seed,
    'topology': topology,
    'agent_name': name,
  }
  return session.run(build, settings, name, resolved)


def topology_of(settings: command_line.Settings) -> str:
  """That of the run that is resumed, else as the flag says.

  Raises:
    command_line.UsageError: both are said, and differ.
  """
  asked = settings.options['topology']
  if not settings.resume or settings.run_dir is None:
    return asked
  kept = run_directory.open(settings.run_dir).config()
  # Runs before this was kept were most often of actors and a learner.
  topology = kept.get('topology', asked)
  if flags.FLAGS['topology'].present and topology != asked:
    raise command_line.UsageError(
      f'{settings.run_dir} is a run of {topology}: it cannot go on as {asked}. '
      'Leave --topology out.'
    )
  return topology
