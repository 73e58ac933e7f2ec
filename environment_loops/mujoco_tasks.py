"""Observations and rewards of gymnasium's MuJoCo tasks (-v5), for K at once.

Each class has the constants and the order of operations of the gymnasium class
that it is named after, with that class's default arguments.
"""

from typing import Any

import numpy as np

from murmuration.environment_loops import mujoco_batch


def _clip(values: np.ndarray) -> np.ndarray:
  """Clips observed velocities or forces; the simulation is not affected."""
  return np.maximum(np.minimum(values, 10.0), -10.0)


class InvertedPendulums(mujoco_batch.Mujocos):
  """InvertedPendulum-v5: 1 for each step within 0.2 rad of upright."""

  _noise = 0.01

  def _observe(self) -> np.ndarray:
    return np.concatenate([self._qpos, self._qvel], axis=1)

  def _judge(
    self, qpos_before: np.ndarray, action: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    terminated = np.abs(self._qpos[:, 1]) > 0.2
    return 1.0 - terminated, terminated


class InvertedDoublePendulums(mujoco_batch.Mujocos):
  """InvertedDoublePendulum-v5: 10 a step for a tip above 1, minus penalties."""

  def _extra(self, data: Any) -> list[np.ndarray]:
    # The tip, and the force of the constraints on the three joints.
    return [data.site_xpos[0], data.qfrc_constraint]

  def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    qpos = self._init_qpos + random.uniform(-0.1, 0.1, self._model.nq)
    qvel = self._init_qvel + random.standard_normal(self._model.nv) * 0.1
    return qpos, qvel

  def _observe(self) -> np.ndarray:
    return np.concatenate(
      [
        self._qpos[:, :1],
        np.sin(self._qpos[:, 1:]),
        np.cos(self._qpos[:, 1:]),
        _clip(self._qvel),
        _clip(self._gathered[:, 1, :1]),
      ],
      axis=1,
    )

  def _judge(
    self, qpos_before: np.ndarray, action: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    x, y = self._gathered[:, 0, 0], self._gathered[:, 0, 2]
    v1, v2 = self._qvel[:, 1], self._qvel[:, 2]
    terminated = y <= 1.0
    distance = 0.01 * x**2 + (y - 2.0) ** 2
    velocity = 1e-3 * v1**2 + 5e-3 * v2**2
    return 10.0 * ~terminated - distance - velocity, terminated


class Reachers(mujoco_batch.Mujocos):
  """Reacher-v5: minus the distance to the target, minus the squared action."""

  def _extra(self, data: Any) -> list[np.ndarray]:
    return [data.body('fingertip').xpos, data.body('target').xpos]

  def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    qpos = random.uniform(-0.1, 0.1, self._model.nq) + self._init_qpos
    target = random.uniform(-0.2, 0.2, 2)
    while np.linalg.norm(target) >= 0.2:
      target = random.uniform(-0.2, 0.2, 2)
    qpos[-2:] = target
    qvel = self._init_qvel + random.uniform(-0.005, 0.005, self._model.nv)
    qvel[-2:] = 0.0
    return qpos, qvel

  def _observe(self) -> np.ndarray:
    return np.concatenate(
      [
        np.cos(self._qpos[:, :2]),
        np.sin(self._qpos[:, :2]),
        self._qpos[:, 2:],
        self._qvel[:, :2],
        self._miss()[:, :2],
      ],
      axis=1,
    )

  def _judge(
    self, qpos_before: np.ndarray, action: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    distance = np.linalg.norm(self._miss(), axis=1)
    reward = -distance - np.square(action).sum(axis=1)
    return reward, np.zeros(self._num, np.bool_)

  def _miss(self) -> np.ndarray:
    """Vector from the target to the fingertip, [K, 3]."""
    return self._gathered[:, 0] - self._gathered[:, 1]


class _Runners(mujoco_batch.Mujocos):
  """Rewards speed along x and being healthy; penalizes large actions."""

  _hidden = 1  # leading positions that are not observed
  _clipped = False
  _healthy_reward = 0.0
  _control_cost = 1e-3

  def _observe(self) -> np.ndarray:
    velocity = _clip(self._qvel) if self._clipped else self._qvel
    return np.concatenate([self._qpos[:, self._hidden :], velocity], axis=1)

  def _judge(
    self, qpos_before: np.ndarray, action: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    healthy = self._healthy()
    speed = (self._qpos[:, 0] - qpos_before[:, 0]) / self._dt
    cost = self._control_cost * np.square(action).sum(axis=1)
    return speed + self._healthy_reward * healthy - cost, ~healthy

  def _healthy(self) -> np.ndarray:
    """Where the episode continues, bool [K]."""
    return np.ones(self._num, np.bool_)


class Hoppers(_Runners):
  """Hopper-v5."""

  _noise = 5e-3
  _clipped = True
  _healthy_reward = 1.0

  def _healthy(self) -> np.ndarray:
    return (
      (np.abs(self._state[:, 3:]) < 100.0).all(axis=1)
      & (self._qpos[:, 1] > 0.7)
      & (np.abs(self._qpos[:, 2]) < 0.2)
    )


class Walkers(_Runners):
  """Walker2d-v5."""

  _noise = 5e-3
  _clipped = True
  _healthy_reward = 1.0

  def _healthy(self) -> np.ndarray:
    height = self._qpos[:, 1]
    return (height > 0.8) & (height < 2.0) & (np.abs(self._qpos[:, 2]) < 1.0)


class Swimmers(_Runners):
  """Swimmer-v5."""

  _hidden = 2
  _control_cost = 1e-4


class HalfCheetahs(_Runners):
  """HalfCheetah-v5."""

  _control_cost = 0.1

  def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    qpos = self._init_qpos + random.uniform(-0.1, 0.1, self._model.nq)
    qvel = self._init_qvel + 0.1 * random.standard_normal(self._model.nv)
    return qpos, qvel
