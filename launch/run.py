"""Runs any agent on any topology under any engine.

python launch/run.py impala:cartpole
python launch/run.py impala:cartpole --topology=swarm
python launch/run.py ppo:hopper --lp_launch_type=local_mt --seed=1
python launch/run.py d4pg:pendulum --config.actors.num_actors=4
python launch/run.py d4pg:pendulum --list-settings
python launch/run.py my_module:MY_AGENT --topology=actor_learner
python launch/run.py --resume=runs/NAME
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
  first.leave(command_line.main(sys.argv[1:], __doc__))
