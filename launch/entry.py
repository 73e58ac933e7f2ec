"""What the run_*.py scripts share between the command line and a topology."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from agents import base
from environment_loops import environments
from launch import command_line
from launch import experiment as experiment_lib


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
      'max_replay_size': agent_config.max_replay_size,
      'min_replay_size': agent_config.min_replay_size,
      'env_steps_per_update': getattr(agent_config, 'env_steps_per_update', 1),
      'seed': settings.seed,
      'run': command_line.make(experiment_lib.RunConfig, config.run),
    },
  )
