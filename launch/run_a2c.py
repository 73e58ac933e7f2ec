"""Runs A2C: one actor whose blocks are batches, a queue of one.

  python launch/run_a2c.py --lp_launch_type=local_mp
  python launch/run_a2c.py --config=acrobot
  python launch/run_a2c.py --config.agent.correction=vtrace

Mnih et al. 2016, arXiv:1602.01783, without asynchrony; docs/agents/a2c.md.
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

from agents import a2c
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'a2c.py'


if __name__ == '__main__':
  sys.exit(entry.main('a2c', CONFIG_FILE, a2c.A2C, a2c.Config))
