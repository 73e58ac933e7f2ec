"""Runs DDPG or TD3: actors with noise, replay, deterministic policies.

  python launch/run_ddpg.py --lp_launch_type=local_mp
  python launch/run_ddpg.py --config=td3_hopper --config.actors.num_actors=4
  python launch/run_ddpg.py --config.agent.prioritized=True
  python launch/run_ddpg.py --topology=single_process

Lillicrap et al. 2016, arXiv:1509.02971; TD3 is Fujimoto et al. 2018,
arXiv:1802.09477; docs/agents/ddpg.md.
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

from agents import ddpg
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'ddpg.py'


if __name__ == '__main__':
  sys.exit(entry.main('ddpg', CONFIG_FILE, ddpg.DDPG, ddpg.Config))
