"""K environments stepped together in one process.

The fastest implementation is chosen by name: arrays for classic control and
MuJoCo tasks, ale_py's own vector environment for Atari, a user's own one if an
environment names it, otherwise K gymnasium environments in a Python loop. All
of them start the next episode in the step that ends one. Each step of each
environment is therefore a true transition, never a reset.
"""

import dataclasses
import functools
import importlib
import threading
from typing import Any

import numpy as np

from murmuration.environment_loops import atari
from murmuration.environment_loops import building
from murmuration.environment_loops import environments
from murmuration.environment_loops import making
from murmuration.environment_loops import stepping

StepBatch = stepping.StepBatch
VectorEnvironment = stepping.VectorEnvironment

RAISE = stepping.RAISE
DROP = stepping.DROP

# Entry point in gymnasium -> class that steps K of them at once. Imported only
# when needed: not every machine has every simulator.
_CLASSIC = 'gymnasium.envs.classic_control'
_MUJOCO = 'gymnasium.envs.mujoco'
_BATCHED = {
  f'{_CLASSIC}.cartpole:CartPoleEnv': 'classic_batch:CartPoles',
  f'{_CLASSIC}.acrobot:AcrobotEnv': 'classic_batch:Acrobots',
  f'{_CLASSIC}.pendulum:PendulumEnv': 'classic_batch:Pendulums',
  f'{_MUJOCO}.half_cheetah_v5:HalfCheetahEnv': 'mujoco_tasks:HalfCheetahs',
  f'{_MUJOCO}.hopper_v5:HopperEnv': 'mujoco_tasks:Hoppers',
  f'{_MUJOCO}.inverted_double_pendulum_v5:InvertedDoublePendulumEnv': (
    'mujoco_tasks:InvertedDoublePendulums'
  ),
  f'{_MUJOCO}.inverted_pendulum_v5:InvertedPendulumEnv': (
    'mujoco_tasks:InvertedPendulums'
  ),
  f'{_MUJOCO}.reacher_v5:ReacherEnv': 'mujoco_tasks:Reachers',
  f'{_MUJOCO}.swimmer_v5:SwimmerEnv': 'mujoco_tasks:Swimmers',
  f'{_MUJOCO}.walker2d_v5:Walker2dEnv': 'mujoco_tasks:Walkers',
}
_ATARI = 'atari_batch:Ataris'
_ANY = 'copies:Copies'
_OWN = 'own_vector:Vectors'


def make_vector(
  name: str,
  num: int,
  seed: int,
  on_fault: str = RAISE,
  max_steps: int | None = None,
) -> VectorEnvironment:
  """Makes K = `num` environments, each with its own stream of random numbers.

  Args:
    name: gymnasium id, for Atari with options if wanted (`atari.py`).
    seed: environment k is seeded with `environment_seeds(seed, num)[k]`.
    on_fault: at a non-finite observation or reward, or an unstable simulation,
      `RAISE` an `EnvironmentFault` or `DROP` the episode (marked in
      `StepBatch.valid`, counted in `faults`, logged).
    max_steps: steps after which an episode is truncated if the environment has
      no limit of its own; None: never.

  Raises:
    EnvironmentRefused: unknown id, missing package or unusable spaces.
    ValueError: `num`, `seed` or `on_fault` out of range.
  """
  stepping.check_num(num)
  spec = environments.spec(name)
  if spec.max_episode_steps is None:
    spec = dataclasses.replace(spec, max_episode_steps=max_steps)
  seeds = environment_seeds(seed, num)
  module, _, kind = _stepper(name).partition(':')
  steppers: Any = importlib.import_module(
    f'murmuration.environment_loops.{module}'
  )
  return getattr(steppers, kind)(spec, seeds, on_fault)


@functools.cache
def check(name: str) -> None:
  """Refuses what `make_vector` would, before there are nodes that make it.

  A user's own vector environment is built and played for a moment. Of others
  the single one says all, as `environments.spec` knows it.

  Raises:
    EnvironmentRefused: it cannot be stepped here.
  """
  if _stepper(name) == _OWN:
    before = threading.enumerate()
    made: Any = make_vector(name, 2, seed=0, on_fault=DROP)
    try:
      made.try_reset()
    finally:
      made.close()
    making.warn_of_threads(name, before)


def environment_seeds(seed: int, num: int) -> list[int]:
  """Seeds of K environments, far apart even for adjacent base seeds >= 0.

  Returns K integers below 2^31, of which the first k do not depend on K.
  """
  environments.check_seed(seed)
  stepping.check_num(num)
  words = np.random.SeedSequence(int(seed)).generate_state(num)
  # Some environments pass the seed on to a C int.
  return [int(word) >> 1 for word in words]


def _stepper(name: str) -> str:
  """The class that steps environments called `name`, as 'module:Class'."""
  if atari.is_atari(name):
    return _ATARI
  registered = building.registered(name)
  # The batched equations assume no other arguments and no wrappers.
  if registered.kwargs or registered.additional_wrappers:
    return _ANY
  entry = str(registered.entry_point)
  # Gymnasium's own vector environments reset by themselves, a step late.
  ours = entry in _BATCHED or entry.startswith('gymnasium.')
  if registered.vector_entry_point is not None and not ours:
    return _OWN
  return _BATCHED.get(entry, _ANY)
