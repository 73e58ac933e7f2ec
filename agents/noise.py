"""Exploration noise of deterministic policies, for P x K environments.

Actions are canonical, so sigma is in units of [-1, 1]: 0.2 is a tenth of the
range.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np


class Noise(Protocol):
  """A noise process, with a state for each environment if it needs one."""

  def draw(
    self, rng: np.random.Generator, shape: tuple[int, ...]
  ) -> np.ndarray:
    """The next noise, float32 of `shape` = [P, K, A]."""

  def ended(self, last: np.ndarray) -> None:
    """Resets environments whose episode has ended, bool [K] or [P, K]."""
    return None

  def __call__(
    self, outputs: np.ndarray, rng: np.random.Generator
  ) -> np.ndarray:
    """Noisy actions in [-1, 1] from the policy's own, [P, K, A]."""
    noisy = outputs + self.draw(rng, outputs.shape)
    return np.clip(noisy, -1.0, 1.0, out=noisy)


class Gaussian(Noise):
  """Independent normal noise at each step (D4PG, TD3)."""

  def __init__(self, sigma: float):
    self._sigma = np.float32(sigma)

  def draw(self, rng, shape):
    return self._sigma * rng.standard_normal(shape, np.float32)


class OrnsteinUhlenbeck(Noise):
  """Correlated noise (Lillicrap et al. 2016, section 7).

    x <- x - theta x + sigma N(0, 1)

  It starts from 0; a time step is one environment step. Its correlation decays
  within about 1 / theta steps, and its standard deviation approaches
  sigma / sqrt(1 - (1 - theta)^2): 0.38 for theta 0.15 and sigma 0.2.
  """

  def __init__(self, sigma: float, theta: float):
    self._sigma = np.float32(sigma)
    self._keep = np.float32(1.0 - theta)
    self._state = np.zeros((0,), np.float32)

  def draw(self, rng, shape):
    if self._state.shape != shape:
      self._state = np.zeros(shape, np.float32)
    fresh = self._sigma * rng.standard_normal(shape, np.float32)
    self._state = self._keep * self._state + fresh
    return self._state

  def ended(self, last):
    if self._state.size:
      ended = np.broadcast_to(last, self._state.shape[:2])
      self._state = np.where(ended[..., None], np.float32(0), self._state)


Kind = Literal['gaussian', 'ornstein_uhlenbeck']
