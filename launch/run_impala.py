"""Runs IMPALA: actors that send unrolls through a queue, V-trace.

  python launch/run_impala.py --lp_launch_type=local_mp
  python launch/run_impala.py --config=pendulum      # IMPASS
  python launch/run_impala.py --config.actors.envs_per_actor=64

Espeholt et al. 2018, arXiv:1802.01561; docs/agents/impala.md.
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

from agents import impala
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'impala.py'


if __name__ == '__main__':
  sys.exit(entry.main('impala', CONFIG_FILE, impala.IMPALA, impala.Config))
