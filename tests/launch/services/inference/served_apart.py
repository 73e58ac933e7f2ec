"""Serves one actor of IMPALA until its input ends; a helper of tests.

  python tests/launch/services/inference/served_apart.py

Prints where.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4]))

from launch import actor_settings
from tests.launch.services.inference import conftest


def main() -> None:
  world = conftest.World(
    'impala',
    actor_settings.Config(
      inference='central', num_actors=1, envs_per_actor=conftest.ENVS
    ),
  )
  print(world.address, flush=True)
  sys.stdin.read()
  world.close()


if __name__ == '__main__':
  main()
