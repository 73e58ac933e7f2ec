"""Runs PPO: rollouts through a queue, epochs of minibatches in one call.

  python launch/run_ppo.py --lp_launch_type=local_mp
  python launch/run_ppo.py --config=pendulum
  python launch/run_ppo.py --config.agent.target_kl=0.02

Schulman et al. 2017, arXiv:1707.06347; docs/agents/ppo.md.
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

from agents import ppo
from launch import entry
from launch import session

CONFIG_FILE = session.root() / 'configs' / 'ppo.py'


if __name__ == '__main__':
  sys.exit(entry.main('ppo', CONFIG_FILE, ppo.PPO, ppo.Config))
