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
from launch import command_line
from launch import entry
from launch import experiment as experiment_lib
from launch import session
from launch.topologies import single_process
from launch.topologies import swarm

CONFIG_FILE = session.root() / 'configs' / 'pso_dqn.py'


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
      experiment = entry.make_experiment(
        settings, dqn.DQN, dqn.Config, settings.options['num_agents']
      )
      config['num_agents'] = experiment.num_agents
      del config['swarm']
      build = functools.partial(_build_baseline, experiment)
    else:
      name = 'pso_dqn'
      swarm_config = command_line.make(swarm_lib.Config, settings.config.swarm)
      experiment = entry.make_experiment(
        settings, dqn.DQN, dqn.Config, swarm_config.num_explorers
      )
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
