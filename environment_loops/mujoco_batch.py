"""MuJoCo tasks of gymnasium (-v5), K simulations stepped together.

Each environment has its own `MjData`, which is stepped exactly as gymnasium
steps its own, so environment k follows the single gymnasium environment with
the same seed. NumPy computes observations, rewards and terminations of all K at
once, where gymnasium computes them in Python for each.

`mujoco.rollout` steps many simulations at once in C++, but starts each call
from the given state: the solver's warm start would have to be carried along to
keep episodes equal to gymnasium's. With one step at a time on one thread it was
not faster here; several threads and other models were not measured.
"""

import abc
from collections.abc import Sequence
from typing import Any

from gymnasium.utils import seeding
import mujoco
import numpy as np

from murmuration.environment_loops import building
from murmuration.environment_loops import stepping

_STATE = int(
  mujoco.mjtState.mjSTATE_TIME
  | mujoco.mjtState.mjSTATE_QPOS
  | mujoco.mjtState.mjSTATE_QVEL
)
_EVERYTHING = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_FIRST_TIME = 1.0  # seconds; longer than any step


class Mujocos(stepping.EpisodeStepper):
  """K simulations of one model; a subclass defines the task.

  Everything that a task reads is float64 with a leading axis K: `_qpos`,
  `_qvel`, and `_gathered`, which holds what it requested with `_extra`.
  """

  _can_rest = True
  # Half the range of the uniform noise on the model's initial state at a reset.
  _noise = 0.1

  def _make(self, seeds: Sequence[int]) -> None:
    environment: Any = building.build(self._spec.name).unwrapped
    self._model = environment.model
    self._frame_skip = environment.frame_skip
    self._dt = float(environment.dt)
    self._space = environment.action_space
    self._init_qpos = environment.init_qpos.copy()
    self._init_qvel = environment.init_qvel.copy()
    environment.close()
    _leave_out_what_does_nothing(self._model)
    self._random = [seeding.np_random(seed)[0] for seed in seeds]
    self._data = [mujoco.MjData(self._model) for _ in seeds]
    self._controls = [data.ctrl for data in self._data]
    # A reset sets time, positions, velocities and the solver's warm start.
    self._start = np.zeros(mujoco.mj_stateSize(self._model, _EVERYTHING))
    mujoco.mj_getState(self._model, self._data[0], self._start, _EVERYTHING)
    # The first entry is the time. It does not start at 0, so that a simulation
    # that MuJoCo has reset (to 0) can be recognized.
    self._start[0] = _FIRST_TIME
    nq = self._model.nq
    self._state = np.zeros((self._num, 1 + nq + self._model.nv))
    self._rows = list(self._state)
    self._time = self._state[:, 0]
    self._qpos = self._state[:, 1 : 1 + nq]
    self._qvel = self._state[:, 1 + nq :]
    sources = [self._extra(data) for data in self._data]
    self._gathered = np.zeros((self._num, len(sources[0]), 3))
    self._sources = [
      (row, source)
      for rows, views in zip(self._gathered, sources, strict=True)
      for row, source in zip(rows, views, strict=True)
    ]

  def reseed(self, index: int, seed: int) -> None:
    self._random[index] = seeding.np_random(seed)[0]

  def _begin(self, index: int, out: np.ndarray) -> None:
    data = self._data[index]
    # Like mj_resetData, which clears much more: a third of a cheap task's time.
    mujoco.mj_setState(self._model, data, self._start, _EVERYTHING)
    data.qpos[:], data.qvel[:] = self._draw(self._random[index])
    mujoco.mj_forward(self._model, data)
    mujoco.mj_getState(self._model, data, self._rows[index], _STATE)
    self._read_extra()
    out[index] = self._observe()[index]

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    native = self._continuous(self._space, actions)
    before = self._state.copy()
    model, frame_skip = self._model, self._frame_skip
    for index in self._stepped():
      data = self._data[index]
      self._controls[index][:] = native[index]
      mujoco.mj_step(model, data, frame_skip)
      mujoco.mj_getState(model, data, self._rows[index], _STATE)
    self._read_extra()
    # If a simulation diverges, MuJoCo resets it to its initial state at time 0.
    unstable = self._time < before[:, 0]
    reward, terminated = self._judge(before[:, 1 : 1 + model.nq], native)
    with np.errstate(over='ignore'):
      # Values beyond float32 become infinite, which is reported as a fault.
      observation = self._observe().astype(np.float32)
      reward = reward.astype(np.float32)
    return stepping.Arrival(observation, reward, terminated, unstable=unstable)

  def _read_extra(self) -> None:
    for row, source in self._sources:
      row[:] = source

  def _extra(self, data: Any) -> list[np.ndarray]:
    """Views into `data` of 3 numbers each, for `_gathered` [K, n, 3]."""
    del data
    return []

  def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An initial (qpos, qvel), drawn in gymnasium's order."""
    nq, nv = self._model.nq, self._model.nv
    noise = random.uniform(-self._noise, self._noise, nq + nv)
    return self._init_qpos + noise[:nq], self._init_qvel + noise[nq:]

  @abc.abstractmethod
  def _observe(self) -> np.ndarray:
    """Observations [K, ...] of the current state."""

  @abc.abstractmethod
  def _judge(
    self, qpos_before: np.ndarray, action: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Rewards [K] and terminations [K] of the step to the current state."""


def _leave_out_what_does_nothing(model: mujoco.MjModel) -> None:
  """Disables computations that cannot change the motion of this model."""
  disabled = mujoco.mjtDisableBit
  # With one kinematic tree there is one constraint island: nothing to split.
  model.opt.disableflags |= int(disabled.mjDSBL_ISLAND)
  touchable = model.geom_contype.any() and model.geom_conaffinity.any()
  if not touchable and model.npair == 0:
    model.opt.disableflags |= int(disabled.mjDSBL_CONTACT)
