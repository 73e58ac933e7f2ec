"""K gymnasium environments, stepped one after the other: always right."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from murmuration.environment_loops import building
from murmuration.environment_loops import faults
from murmuration.environment_loops import stepping


class Copies(stepping.EpisodeStepper):
  """Gymnasium environments in a Python loop."""

  _can_rest = True

  def _make(self, seeds: Sequence[int]) -> None:
    self._seeds: list[int | None] = list(seeds)
    self._environments = [building.build(self._spec.name) for _ in seeds]
    for environment, seed in zip(self._environments, seeds):
      building.seed_spaces(environment, seed)
    self._steps = [environment.step for environment in self._environments]
    self._space: Any = self._environments[0].action_space
    self._clocks = [
      building.SimulationClock(environment)
      for environment in self._environments
    ]

  def reseed(self, index: int, seed: int) -> None:
    self._seeds[index] = seed

  def close(self) -> None:
    for environment in self._environments:
      building.close(self._spec.name, environment)

  def _begin(self, index: int, out: np.ndarray) -> None:
    first = faults.first(
      self._spec.name, self._environments[index].reset, seed=self._seeds[index]
    )
    # Seeding again would replay the same episode for ever.
    self._seeds[index] = None
    out[index] = self._observed(first)
    self._clocks[index].restart()

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    observation = self._acted_on.copy()
    reward = np.zeros(self._num, np.float32)
    terminated = np.zeros(self._num, np.bool_)
    truncated = np.zeros(self._num, np.bool_)
    back = np.zeros(self._num, np.bool_)
    native = self._native(actions)
    for index in self._stepped():
      found: Any = None
      try:
        found = self._steps[index](native[index])
        arrival, paid, terminated[index], truncated[index], _ = found
        # Most are floats, each step of each environment.
        reward[index] = paid if type(paid) is float else faults.reward(paid)
        observation[index] = self._observed(arrival)
      except faults.EnvironmentFault as e:
        self._misshapen[index] = e
      except (TypeError, ValueError) as e:
        faults.check_step(self._spec.name, found, e)
        raise
      # Of those that rest, the clock stands still.
      went_back = self._clocks[index].went_back()
      back[index] = went_back or index in self._misshapen
    return stepping.Arrival(
      observation,
      reward,
      terminated,
      truncated,
      back if back.any() else None,
    )

  def _observed(self, value: Any) -> np.ndarray:
    spec = self._spec
    if (
      type(value) is np.ndarray
      and value.dtype == self._dtype
      and value.shape == spec.observation_shape
    ):
      return value  # what nearly all are, each step of each environment
    return faults.observation(
      spec.name, value, spec.observation_shape, self._dtype
    )

  def _native(self, actions: np.ndarray) -> Any:
    if not self._spec.discrete:
      return self._continuous(self._space, actions)
    return (self._discrete(actions) + int(self._space.start)).tolist()
