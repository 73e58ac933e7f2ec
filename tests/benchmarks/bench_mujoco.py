"""Batched MuJoCo tasks beside gymnasium's vector environment: steps per second.

16 environments of one process and one thread step together, with the same
random actions, in turns: ours (`vector.make_vector`) and
`gymnasium.vector.SyncVectorEnv` of the same tasks, with gymnasium's checker of
each environment turned off. Only transitions count: SyncVectorEnv spends a step
of an environment on each reset, which is none.
"""

from __future__ import annotations

import functools
import statistics
import sys
from typing import Any

import gymnasium
import numpy as np

from murmuration.environment_loops import actions as actions_lib
from murmuration.environment_loops import environments
from murmuration.environment_loops import vector
from tests.benchmarks import common

_NUM = 16
_TASKS = ('Hopper-v5', 'InvertedPendulum-v5', 'Reacher-v5', 'Swimmer-v5')
_NEEDED = {'Hopper-v5': 2.0}  # times gymnasium; of the others nothing is
_ACTIONS = 512  # drawn before, then taken in a circle


class _Ours:
  """The project's environments."""

  def __init__(self, task: str, actions: np.ndarray):
    self.transitions = 0
    self._actions = list(actions)
    self._environment = vector.make_vector(task, _NUM, 0)
    self._environment.reset()

  def step(self, number: int) -> None:
    self._environment.step(self._actions[number])
    self.transitions += _NUM

  def close(self) -> None:
    self._environment.close()


class _Gymnasium:
  """SyncVectorEnv as it comes: it resets in the step after the last."""

  def __init__(self, task: str, actions: np.ndarray):
    self.transitions = 0
    make = functools.partial(gymnasium.make, task, disable_env_checker=True)
    self._environment: Any = gymnasium.vector.SyncVectorEnv([make] * _NUM)
    space: Any = self._environment.single_action_space
    self._actions = list(
      actions_lib.to_native(task, space, actions, actions.shape[:2])
    )
    self._environment.reset(seed=0)
    self._resetting = np.zeros(_NUM, bool)

  def step(self, number: int) -> None:
    _, _, terminated, truncated, _ = self._environment.step(
      self._actions[number]
    )
    self.transitions += _NUM - int(np.count_nonzero(self._resetting))
    self._resetting = terminated | truncated

  def close(self) -> None:
    self._environment.close()


def measure(
  system: type[_Ours | _Gymnasium], task: str, seconds: float
) -> dict[str, float]:
  """Transitions per second of all environments together.

  Returns:
    'wall' and 'cpu': per second of the clock and of the process.
  """
  shape = (_ACTIONS, _NUM, *environments.spec(task).action_shape)
  actions = np.random.default_rng(0).uniform(-1.0, 1.0, shape)
  made = system(task, actions.astype(np.float32))
  calls = 0

  def step():
    nonlocal calls
    made.step(calls % _ACTIONS)
    calls += 1

  try:
    cost = common.timed(step, seconds)
  finally:
    made.close()
  each = 1e6 * made.transitions / calls
  return {'wall': each / cost['wall_us'], 'cpu': each / cost['cpu_us']}


def main() -> int:
  args = common.arguments(__doc__)
  repetitions = common.choose(args, 1, 3, 5)
  seconds = common.choose(args, 0.5, 2.0, 5.0)
  common.warn_if_busy()
  rows, notes, numbers = [], [], {}
  for task in _TASKS:
    pairs = []
    for number in range(repetitions):
      ours = measure(_Ours, task, seconds)
      theirs = measure(_Gymnasium, task, seconds)
      pairs.append({'ours': ours, 'gymnasium': theirs})
      rows.append(
        (
          task,
          number + 1,
          f'{ours["wall"]:,.0f}',
          f'{theirs["wall"]:,.0f}',
          f'{ours["wall"] / theirs["wall"]:.2f}',
          f'{ours["cpu"] / theirs["cpu"]:.2f}',
        )
      )
    ratio = statistics.median(
      pair['ours']['wall'] / pair['gymnasium']['wall'] for pair in pairs
    )
    needed = f'; needed {_NEEDED[task]:g}' if task in _NEEDED else ''
    notes.append(f'{task}: median {ratio:.2f} times SyncVectorEnv{needed}.')
    print(notes[-1], flush=True)
    numbers[task] = pairs
  notes.append(
    f'{_NUM} environments, uniformly random actions, {seconds:g} s each, one '
    f'after the other; gymnasium {gymnasium.__version__}. Other programs move '
    'the ratio by CPU time less.'
  )
  common.publish(
    common.Result(
      f'{_NUM} MuJoCo environments in one process, beside SyncVectorEnv',
      [
        common.table(
          (
            'task',
            'repetition',
            'Murmuration, env steps/s',
            'SyncVectorEnv, env steps/s',
            'ratio',
            'ratio by CPU time',
          ),
          rows,
        )
      ],
      notes,
      numbers,
    ),
    args,
  )
  return 0


if __name__ == '__main__':
  sys.exit(main())
