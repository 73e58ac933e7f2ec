"""Runs Acme's own D4PG with actors and a learner of this project.

  python launch/run_acme_d4pg.py --lp_launch_type=local_mp

docs/agents/acme.md.
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

from agents import acme_d4pg
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'acme_d4pg.py'


if __name__ == '__main__':
  sys.exit(
    entry.main('acme_d4pg', CONFIG_FILE, acme_d4pg.AcmeD4PG, acme_d4pg.Config)
  )
