"""Classic control, K environments as arrays: gymnasium's equations in NumPy.

Environment k follows the single gymnasium environment with the same seed, bit
for bit if NumPy's sine is the same for arrays and for numbers.
"""

from collections.abc import Callable, Sequence
import math

import gymnasium
import numpy as np

from murmuration.environment_loops import stepping


def uniforms(seeds: Sequence[int]) -> list[Callable[..., np.ndarray]]:
  """The functions from which gymnasium's environments draw first states."""
  return [gymnasium.utils.seeding.np_random(seed)[0].uniform for seed in seeds]


class _Drawn(stepping.EpisodeStepper):
  """Environments whose only randomness is in their first states."""

  _draws: list[Callable[..., np.ndarray]]

  def reseed(self, index: int, seed: int) -> None:
    (self._draws[index],) = uniforms([seed])


class CartPoles(_Drawn):
  """Cart and pole (Barto, Sutton and Anderson 1983), as in CartPoleEnv.

  Gravity 9.8, cart 1 kg, pole 0.1 kg and 1 m, force 10 N either way, 0.02 s per
  step of Euler's method. Gymnasium's own CartPoleVectorEnv has the same
  equations, but half of its step is checks, and its resets take a step. State:
  x, x', angle, angle', float64 [4, K].
  """

  _FORCES = np.array([-10.0, 10.0])
  # Gravity; mass of the pole, of all, kg; half the pole, m; time step, s.
  _NUMBERS = 9.8, 0.1, 1.1, 0.5, 0.02
  # Limits of |x| and |angle|.
  _LIMITS = np.array([[2.4], [12 * 2 * math.pi / 360]])

  def _make(self, seeds: Sequence[int]) -> None:
    self._state, self._slope = np.zeros((2, 4, self._num))
    self._draws = uniforms(seeds)
    # Arrays [K]: an operation on an array and a number takes twice as long.
    gravity, pole, total, half, dt = self._NUMBERS
    self._constants = [
      np.full(self._num, number)
      for number in (gravity, pole, total, half, pole * half, 4.0 / 3.0)
    ]
    self._dt = np.full((4, self._num), dt)
    self._limits = self._LIMITS.repeat(self._num, axis=1)
    self._reward = np.ones(self._num, np.float32)

  def _begin(self, index: int, out: np.ndarray) -> None:
    state = self._draws[index](low=-0.05, high=0.05, size=(4,))
    self._state[:, index] = state
    out[index] = state

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    force = self._FORCES.take(self._discrete(actions))
    gravity, pole, total, half, moment, four_thirds = self._constants
    _, x_dot, angle, angle_dot = self._state
    cos, sin = np.cos(angle), np.sin(angle)
    pushed = (force + moment * (angle_dot * angle_dot) * sin) / total
    angle_acc = (gravity * sin - cos * pushed) / (
      half * (four_thirds - pole * (cos * cos) / total)
    )
    slope = self._slope
    slope[0], slope[2], slope[3] = x_dot, angle_dot, angle_acc
    slope[1] = pushed - moment * angle_acc * cos / total
    slope *= self._dt
    self._state += slope
    outside = np.abs(self._state[::2]) > self._limits
    return stepping.Arrival(
      self._state.T.astype(np.float32, order='C'),
      self._reward.copy(),
      outside[0] | outside[1],
    )


class Acrobots(_Drawn):
  """Acrobot (Sutton 1996; the book's dynamics), as in AcrobotEnv.

  Both links: mass 1, length 1, centre of mass at 1/2, moment of inertia 1;
  gravity 9.8; 0.2 s per step, one step of the classical Runge-Kutta method.
  State: angles and angular velocities, float64 [4, K].
  """

  _DT = 0.2
  _HIGHEST = np.array([[4.0 * math.pi], [9.0 * math.pi]])
  _TORQUES = np.array([-1.0, 0.0, 1.0])

  def _make(self, seeds: Sequence[int]) -> None:
    self._state = np.zeros((4, self._num))
    self._draws = uniforms(seeds)

  def _begin(self, index: int, out: np.ndarray) -> None:
    state = self._draws[index](low=-0.1, high=0.1, size=(4,))
    # AcrobotEnv rounds only its first state to float32.
    self._state[:, index] = state.astype(np.float32)
    only = slice(index, index + 1)
    out[only] = self._observe(self._state[:, only])

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    torque = self._TORQUES[self._discrete(actions)]
    dt, s = self._DT, self._state
    k1 = self._slope(s, torque)
    k2 = self._slope(s + (dt / 2.0) * k1, torque)
    k3 = self._slope(s + (dt / 2.0) * k2, torque)
    k4 = self._slope(s + dt * k3, torque)
    s = s + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
    angles = s[:2]
    while (far := np.abs(angles) > math.pi).any():
      # Subtracts one turn at a time, for the same rounding as in AcrobotEnv.
      angles -= np.copysign(2.0 * math.pi, angles) * far
    np.maximum(s[2:], -self._HIGHEST, out=s[2:])
    np.minimum(s[2:], self._HIGHEST, out=s[2:])
    self._state = s
    observation = self._observe(s)
    terminated = -np.cos(s[0]) - np.cos(s[1] + s[0]) > 1.0
    reward = np.subtract(terminated, 1.0, dtype=np.float32)
    return stepping.Arrival(observation, reward, terminated)

  @staticmethod
  def _slope(s: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Time derivative of the state, [4, K].

    The terms are those of AcrobotEnv with the constants multiplied out, added
    in the same order: the motion is unstable, and would amplify other rounding.
    """
    theta1, theta2, dtheta1, dtheta2 = s
    sin2, cos2 = np.sin(theta2), np.cos(theta2)
    d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0
    d2 = 0.25 + 0.5 * cos2 + 1.0
    phi2 = 4.9 * np.cos(theta1 + theta2 - math.pi / 2.0)
    phi1 = (
      -0.5 * dtheta2**2 * sin2
      - dtheta2 * dtheta1 * sin2
      + 1.5 * 9.8 * np.cos(theta1 - math.pi / 2)
      + phi2
    )
    result = np.empty_like(s)
    result[:2] = s[2:]
    ratio = d2 / d1
    result[3] = (torque + ratio * phi1 - 0.5 * dtheta1**2 * sin2 - phi2) / (
      1.25 - d2**2 / d1
    )
    result[2] = -(d2 * result[3] + phi1) / d1
    return result

  @staticmethod
  def _observe(s: np.ndarray) -> np.ndarray:
    """[cos, sin of both angles, both velocities], float32 [K, 6]."""
    result = np.empty((s.shape[1], 6), np.float32)
    result[:, 0:3:2] = np.cos(s[:2]).T
    result[:, 1:4:2] = np.sin(s[:2]).T
    result[:, 4:] = s[2:].T
    return result


class Pendulums(_Drawn):
  """The swing-up pendulum, as in PendulumEnv with gravity 10.

  Mass 1, length 1, 0.05 s per step, torque within 2, speed within 8. State:
  angle and angular velocity, float64 [2, K].
  """

  _DT = 0.05
  _HIGHEST = np.array([math.pi, 1.0])

  def _make(self, seeds: Sequence[int]) -> None:
    self._state = np.zeros((2, self._num))
    self._draws = uniforms(seeds)
    self._space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
    self._never = np.zeros(self._num, np.bool_)

  def _begin(self, index: int, out: np.ndarray) -> None:
    self._state[:, index] = self._draws[index](
      low=-self._HIGHEST, high=self._HIGHEST
    )
    only = slice(index, index + 1)
    out[only] = self._observe(self._state[:, only])

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    torque = self._continuous(self._space, actions)[:, 0]
    theta, speed = self._state
    angle = (theta + math.pi) % (2.0 * math.pi) - math.pi
    cost = angle**2 + 0.1 * speed**2 + 0.001 * torque.astype(np.float64) ** 2
    push = 15.0 * np.sin(theta) + 3.0 * torque.astype(np.float64)
    speed = np.maximum(np.minimum(speed + push * self._DT, 8.0), -8.0)
    self._state = np.stack([theta + speed * self._DT, speed])
    reward = np.negative(cost).astype(np.float32)
    return stepping.Arrival(self._observe(self._state), reward, self._never)

  @staticmethod
  def _observe(s: np.ndarray) -> np.ndarray:
    """[cos, sin, angular velocity], float32 [K, 3]."""
    result = np.empty((s.shape[1], 3), np.float32)
    result[:, 0] = np.cos(s[0])
    result[:, 1] = np.sin(s[0])
    result[:, 2] = s[1]
    return result
