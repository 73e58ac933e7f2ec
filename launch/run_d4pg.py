"""Runs D4PG: actors with noise, n-step replay, a distributional critic.

  python launch/run_d4pg.py --lp_launch_type=local_mp
  python launch/run_d4pg.py --config=hopper --config.actors.num_actors=4
  python launch/run_d4pg.py --topology=single_process

Barth-Maron et al. 2018, arXiv:1804.08617; docs/agents/d4pg.md.
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

from agents import d4pg
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'd4pg.py'


if __name__ == '__main__':
  sys.exit(entry.main('d4pg', CONFIG_FILE, d4pg.D4PG, d4pg.Config))
