"""Exploration noise of deterministic policies, for P x K environments.

Actions are canonical, so sigma is in units of [-1, 1]: 0.2 is a tenth of the
range.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np


class Noise(Protocol):
  """Keeps a state for each environment, if it needs one."""

  def draw(
    self, rng: np.random.Generator, shape: tuple[int, ...]
  ) -> np.ndarray:
    """The next noise, float32 `shape` = [P, K, A]."""

  def ended(self, last: np.ndarray) -> None:
    """Environments whose episode has ended start anew: bool [K] or [P, K]."""


class Gaussian:
  """Independent normal noise, fresh at each step (D4PG, TD3)."""

  def __init__(self, sigma: float):
    self._sigma = np.float32(sigma)

  def draw(self, rng, shape):
    return self._sigma * rng.standard_normal(shape, np.float32)

  def ended(self, last):
    del last


class OrnsteinUhlenbeck:
  """Correlated noise (Lillicrap et al. 2016, section 7).

    x <- x - theta x + sigma N(0, 1)

  starting from 0, with a step of one environment step. Its correlation decays
  within about 1 / theta steps, and it settles at a standard deviation of
  sigma / sqrt(1 - (1 - theta)^2): 0.38 for 0.15 and 0.2.
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


def make(kind: Kind, sigma: float, theta: float) -> Noise:
  """The noise of a config.

  Args:
    kind: of it.
    sigma: standard deviation of one draw, canonical units.
    theta: share of the state that Ornstein-Uhlenbeck noise forgets per step.
  """
  if kind == 'gaussian':
    return Gaussian(sigma)
  return OrnsteinUhlenbeck(sigma, theta)


class Exploration:
  """How a deterministic policy explores: at random first, then with noise."""

  def __init__(self, process: Noise, random_steps: int):
    """Makes one, with a state of its own.

    Args:
      process: the noise.
      random_steps: actor steps of uniformly random actions at first.
    """
    self._process = process
    self._random_steps = random_steps

  def __call__(
    self, outputs: np.ndarray, actor_steps: int, rng: np.random.Generator
  ) -> np.ndarray:
    """Exploring actions in [-1, 1] for the policy's own, [P, K, A]."""
    if actor_steps < self._random_steps:
      return rng.uniform(-1.0, 1.0, outputs.shape).astype(np.float32)
    noisy = outputs + self._process.draw(rng, outputs.shape)
    return np.clip(noisy, -1.0, 1.0, out=noisy)

  def ended(self, last: np.ndarray) -> None:
    """Says where an episode has ended, bool [K] or [P, K]."""
    self._process.ended(last)
