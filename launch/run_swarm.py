"""Runs the swarm of Liu et al. 2018, arXiv:1811.10264: run.py with PSO-DQN.

python launch/run_swarm.py --lp_launch_type=local_mp
python launch/run_swarm.py pso_dqn:acrobot --config.swarm.num_explorers=8
python launch/run_swarm.py pso_ddpg:hopper
"""

from __future__ import annotations

import pathlib
import sys

# Run as a file, Python would look for modules in launch/ first.
if not __package__:
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from murmuration.run_records import first

if __name__ == '__main__':
  first.begin()

from murmuration.replay import isolation
from murmuration.run_records import later

if __name__ == '__main__':
  isolation.prepare(sys.argv)  # the imports below may start threads
  later.put_off()

from murmuration.launch import command_line

if __name__ == '__main__':
  first.leave(command_line.main(sys.argv[1:], __doc__, 'pso_dqn'))
