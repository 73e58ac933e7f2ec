"""Runs Ape-X DQN: actors with a ladder of epsilons, prioritized replay.

  python launch/run_apex_dqn.py --lp_launch_type=local_mp
  python launch/run_apex_dqn.py --config=acrobot --config.actors.num_actors=4
  python launch/run_apex_dqn.py --config.actors.samples_per_insert=None
  python launch/run_apex_dqn.py --resume=runs/NAME

Horgan et al. 2018, arXiv:1803.00933; docs/agents/apex_dqn.md.
"""

from __future__ import annotations

import os
import pathlib
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
# TensorFlow's notes about GPUs and CPU features; errors are still shown.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

from agents import dqn
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'apex_dqn.py'


if __name__ == '__main__':
  sys.exit(entry.main('apex_dqn', CONFIG_FILE, dqn.DQN, dqn.Config))
