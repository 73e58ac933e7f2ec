"""n-step windows over K environments stepped together, in NumPy.

A window that starts at step t and holds m <= n rewards becomes the transition

  R = sum_{k<m} gamma^k (prod_{j<k} d_{t+j}) r_{t+k}
  D = gamma^(m-1) prod_{j<m} d_{t+j}

with o_tm1 and a_tm1 of its first step, and as o_t the true observation after
its last reward. m < n only where the episode ends. The learner multiplies D by
gamma once more. At a termination D is 0; at a truncation D stays gamma^(m-1)
and o_t is the final observation of that episode. No window crosses an end.
"""

from typing import Any

import numpy as np

from murmuration.replay import packing

# Tolerance for the rounding of actions beyond [-1, 1].
_ROUNDING = 1e-4


class NStepWindow:
  """Accumulates the last n steps of K environments, without Python loops.

  Step t opens slot t mod n of a ring. Each step adds its reward to all open
  slots at once, on arrays [n, K]. There are two ways to read the windows:

  - `aligned()`: [K, W], the windows that started n - 1 steps ago, complete or
    cut. Read after every `observe`, it returns each start exactly once.
  - `finished()`: [M, W], the windows that the latest step finished. Single
    transitions are written from these.

  `n` counts the steps in a full window, `gamma` is the agent's discount per
  step, and `layout` says how transitions are packed.
  """

  def __init__(
    self,
    num_envs: int,
    n: int,
    gamma: float,
    layout: packing.TransitionLayout,
  ):
    """Makes an empty window.

    Raises:
      ValueError: `num_envs`, `n` or `gamma` is out of range.
    """
    if num_envs < 1 or n < 1:
      raise ValueError(f'num_envs={num_envs} and n={n} must be at least 1.')
    if not 0 <= gamma <= 1:
      raise ValueError(f'gamma={gamma} must lie in [0, 1].')
    self.num_envs = num_envs
    self.n = n
    self.gamma = gamma
    self.layout = layout
    self._ring = np.zeros((n, num_envs, layout.width), layout.dtype)
    # float64, so that sums of many rewards keep float32 precision.
    self._return = np.zeros((n, num_envs))
    self._discount = np.zeros((n, num_envs))
    self._coefficient = np.zeros((n, num_envs))
    self._scratch = np.zeros((n, num_envs))
    self._one = layout.encode([1.0])
    self._members = np.arange(num_envs)
    self._offsets = np.arange(n)
    self.reset()

  def reset(self) -> None:
    """Forgets all open windows; the next step begins new episodes."""
    self._time = -1
    self._started = False
    self._open = np.zeros((self.n, self.num_envs), bool)
    self._age = np.zeros(self.num_envs, np.int64)
    self._last = np.zeros(self.num_envs, bool)
    self._any_last = False
    self._valid: np.ndarray | None = None
    # Whether an episode end has closed slots before they were n steps old.
    self._any_cut = False
    # Also right for uint8 columns: the bytes of 0.0 are zeros.
    self._ring[..., self.layout.slices.weight] = 0

  @property
  def ready(self) -> bool:
    """Whether n steps were observed, so that weights of `aligned` can be 1."""
    return self._time >= self.n - 1

  def observe(
    self, observation: Any, action: Any, step: Any, version: Any = 0
  ) -> None:
    """Adds one step of every environment.

    Args:
      observation: what was acted on, [K, *observation_shape].
      action: what was done, [K, *action_shape].
      step: the result, with the fields `observation` [K, ...] (the true
        arrival), `reward` [K], `discount` [K], `last` [K], and `valid` [K] or
        None: False where the environment, and with it the episode, broke.
      version: learner steps of the parameters that acted, a number or [K].

    Raises:
      ValueError: at the first step, a shape or a dtype does not fit; at any
        step, a continuous action is not in [-1, 1].
    """
    if not self._started:
      self._check(observation, action, step)
      self._started = True
    if not self.layout.discrete:
      _check_canonical(action)
    slices = self.layout.slices
    self._time += 1
    slot = self._time % self.n
    if self._any_last:
      # Windows of episodes that the previous step ended take no more rewards.
      ended = self._last
      self._open[:, ended] = False
      self._coefficient[:, ended] = 0.0
      self._age[ended] = 0
      self._any_cut = True
    row = self._ring[slot]
    row[:, slices.o_tm1] = np.reshape(observation, (self.num_envs, -1))
    encode = self.layout.encode
    row[:, slices.a_tm1] = encode(np.reshape(action, (self.num_envs, -1)))
    row[:, slices.weight] = self._one
    row[:, slices.version] = encode(np.reshape(version, (-1, 1)))
    self._return[slot] = 0.0
    self._coefficient[slot] = 1.0
    self._open[slot] = True
    self._age += 1

    scratch = self._scratch
    np.multiply(self._coefficient, step.reward, out=scratch)
    self._return += scratch
    np.multiply(self._coefficient, step.discount, out=scratch)
    if self._any_cut:
      np.copyto(self._discount, scratch, where=self._open)
    else:
      self._discount[...] = scratch
    np.multiply(scratch, self.gamma, out=self._coefficient)

    self._arrival = np.reshape(step.observation, (self.num_envs, -1))
    self._last = np.array(step.last, bool)
    self._any_last = bool(self._last.any())
    if self._any_last:
      # A window that the end cut short keeps the final observation.
      slots, members = np.nonzero(self._open & self._last)
      self._ring[slots, members, slices.o_t] = self._arrival[members]
    self._valid = getattr(step, 'valid', None)
    if self._valid is not None:
      # Open windows of a broken environment must not be learned from.
      slots, members = np.nonzero(self._open & ~self._valid)
      self._ring[slots, members, slices.weight] = 0

  def aligned(self) -> np.ndarray:
    """The windows that started n - 1 steps ago, one of each environment.

    Returns:
      [K, W] of the layout's dtype, a new array. Until n steps have been
      observed, weight is 0 and the rest is arbitrary.
    """
    slices = self.layout.slices
    slot = (self._time + 1) % self.n
    packed = self._ring[slot].copy()
    self._close(packed, self._return[slot], self._discount[slot])
    if self._any_cut:
      still_open = self._open[slot]
      packed[still_open, slices.o_t] = self._arrival[still_open]
    else:
      packed[:, slices.o_t] = self._arrival
    return packed

  def finished(self) -> np.ndarray:
    """The windows that the latest step finished.

    These are a full window for each environment whose episode is at least n
    steps old and, at an episode end, the shorter ones of the remaining starts.

    Returns:
      [M, W] of the layout's dtype, ordered by environment, then by first step.
    """
    slices = self.layout.slices
    first = np.maximum(self.n - self._age, 0)
    wanted = self._last | (self._age >= self.n)
    if self._any_last:
      chosen = self._offsets == first[:, None]
      chosen |= self._last[:, None] & (self._offsets > first[:, None])
      chosen &= wanted[:, None]
      if self._valid is not None:
        chosen &= self._valid[:, None]
      members, offsets = np.nonzero(chosen)
    else:
      members = self._members[wanted]
      offsets = first[wanted]
    slots = (self._time + 1 + offsets) % self.n
    packed = self._ring[slots, members]
    self._close(
      packed, self._return[slots, members], self._discount[slots, members]
    )
    packed[:, slices.o_t] = self._arrival[members]
    return packed

  def _close(
    self, packed: np.ndarray, returns: np.ndarray, discounts: np.ndarray
  ) -> None:
    """Writes the fields of M windows that are known only when they are read."""
    layout = self.layout
    slices = layout.slices
    packed[:, slices.r_t] = layout.encode(returns[:, None])
    packed[:, slices.d_t] = layout.encode(discounts[:, None])
    packed[:, slices.written_at] = layout.encode([packing.written_now()])

  def _check(self, observation: Any, action: Any, step: Any) -> None:
    layout = self.layout
    for name, given, inner in (
      ('observation', observation, layout.observation_shape),
      ('action', action, layout.action_shape),
      ('step.observation', step.observation, layout.observation_shape),
      ('step.reward', step.reward, ()),
      ('step.discount', step.discount, ()),
      ('step.last', step.last, ()),
    ):
      got = np.shape(given)
      if got != (self.num_envs, *inner):
        raise ValueError(
          f'{name} has shape {got}, but {(self.num_envs, *inner)} is needed '
          f'for {self.num_envs} environments. Make the window with the number '
          'of environments and the layout of the environment that is stepped.'
        )
    layout.check_observation_dtype('observation', observation)
    layout.check_observation_dtype('step.observation', step.observation)


def _check_canonical(action: Any) -> None:
  """Refuses actions outside [-1, 1]: the environment did not do them."""
  largest = np.abs(action).max()
  if not largest <= 1 + _ROUNDING:
    raise ValueError(
      f'An action of {largest} came to replay; needed are floats in [-1, 1], '
      'whatever the bounds of the environment. Environments clip what is '
      'outside: let the agent clip it, so that replay holds what was done.'
    )
