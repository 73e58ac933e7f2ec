"""Runs PSO-DQN: explorers that learn by gradient and are pulled to a best.

  python launch/run_swarm.py --lp_launch_type=local_mp
  python launch/run_swarm.py --config=acrobot --config.swarm.num_explorers=8
  python launch/run_swarm.py --baseline        # the plain DQN, same budget

Liu et al. 2018, arXiv:1811.10264; docs/agents/pso_dqn.md.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
# TensorFlow's notes about GPUs and CPU features; errors are still shown.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from absl import flags

from agents import dqn
from agents import swarm as swarm_lib
from environment_loops import environments
from launch import command_line
from launch import experiment as experiment_lib
from launch import session
from launch.topologies import single_process
from launch.topologies import swarm

CONFIG_FILE = session.root() / 'configs' / 'pso_dqn.py'


def make_experiment(
  settings: command_line.Settings, num_agents: int
) -> experiment_lib.Experiment:
  """The experiment of a command line.

  Raises:
    command_line.UsageError: with the reason.
  """
  config = settings.config
  agent_config = command_line.make(dqn.Config, config.agent)
  spec = command_line.environment_spec(config.environment)
  make_agent = functools.partial(dqn.DQN, agent_config, spec)
  try:
    make_agent()
  except environments.EnvironmentRefused as e:
    raise command_line.UsageError(str(e)) from e
  return command_line.make(
    experiment_lib.Experiment,
    {
      'make_agent': make_agent,
      'environment': config.environment,
      'num_agents': num_agents,
      'max_replay_size': agent_config.max_replay_size,
      'min_replay_size': agent_config.min_replay_size,
      'env_steps_per_update': agent_config.env_steps_per_update,
      'seed': settings.seed,
      'run': command_line.make(experiment_lib.RunConfig, config.run),
    },
  )


def main() -> int:
  command_line.define_flags(CONFIG_FILE)
  flags.DEFINE_boolean('baseline', False, 'Plain DQN instead of the swarm.')
  flags.DEFINE_integer(
    'num_agents', 1, 'Independent agents of the baseline.', lower_bound=1
  )
  try:
    settings = command_line.parse(sys.argv)
    config = settings.config.to_dict()
    config['seed'] = settings.seed
    if settings.options['baseline']:
      name = 'dqn'
      experiment = make_experiment(settings, settings.options['num_agents'])
      config['num_agents'] = experiment.num_agents
      del config['swarm']
      build = functools.partial(_build_baseline, experiment)
    else:
      name = 'pso_dqn'
      swarm_config = command_line.make(swarm_lib.Config, settings.config.swarm)
      experiment = make_experiment(settings, swarm_config.num_explorers)
      build = functools.partial(_build_swarm, experiment, swarm_config)
    config['agent_name'] = name
  except command_line.UsageError as e:
    command_line.fail(str(e))
  return session.run(build, settings, name, config)


def _build_swarm(experiment, config, run_dir):
  return swarm.build(experiment_lib.in_directory(experiment, run_dir), config)


def _build_baseline(experiment, run_dir):
  return single_process.build(experiment_lib.in_directory(experiment, run_dir))


if __name__ == '__main__':
  sys.exit(main())
