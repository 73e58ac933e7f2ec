"""Runs Ape-X DQN: actors with a ladder of epsilons, prioritized replay.

  python launch/run_apex_dqn.py --lp_launch_type=local_mp
  python launch/run_apex_dqn.py --config=acrobot --config.actors.num_actors=4
  python launch/run_apex_dqn.py --config.actors.samples_per_insert=None
  python launch/run_apex_dqn.py --resume=runs/NAME

Horgan et al. 2018, arXiv:1803.00933; docs/agents/apex_dqn.md.
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

from agents import dqn
from launch import actors
from launch import command_line
from launch import entry
from launch import experiment as experiment_lib
from launch import session
from launch.topologies import actor_learner

CONFIG_FILE = session.root() / 'configs' / 'apex_dqn.py'
NAME = 'apex_dqn'


def main() -> int:
  command_line.define_flags(CONFIG_FILE)
  try:
    settings = command_line.parse(sys.argv)
    experiment = entry.make_experiment(settings, dqn.DQN, dqn.Config)
    config = command_line.make(actors.Config, settings.config.actors)
  except command_line.UsageError as e:
    command_line.fail(str(e))
  build = functools.partial(_build, experiment, config)
  resolved = {**settings.config.to_dict(), 'seed': settings.seed}
  return session.run(build, settings, NAME, {**resolved, 'agent_name': NAME})


def _build(experiment, config, run_dir):
  return actor_learner.build(
    experiment_lib.in_directory(experiment, run_dir), config
  )


if __name__ == '__main__':
  sys.exit(main())
