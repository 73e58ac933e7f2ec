"""K Atari games on ale_py's own vector environment.

It emulates, skips, pools, resizes and stacks in C++. Held against the single
environment of `atari.py` in the tests, where neither has no-ops: frames,
rewards, ends and final observations are equal. Used with its same-step reset,
which hands over the final observation apart from the first one of the next
game.
"""

from collections.abc import Sequence
from typing import Any

from ale_py import vector_env
import cv2
import numpy as np

from murmuration.environment_loops import atari
from murmuration.environment_loops import stepping


class Ataris(stepping.EpisodeStepper):
  """K games stepped by a thread pool (one thread unless told otherwise)."""

  def _make(self, seeds: Sequence[int]) -> None:
    self._options = atari.split(self._spec.name)[1]
    self._seeds: np.ndarray | None = np.array(seeds, np.int64)
    self._vector: Any = vector_env.AtariVectorEnv(
      atari.rom_of(self._spec.name),
      self._num,
      num_threads=min(self._options.threads, self._num),
      max_num_frames_per_episode=atari.MAX_FRAMES,
      repeat_action_probability=self._options.sticky,
      autoreset_mode='SameStep',
      img_height=atari.SIZE,
      img_width=atari.SIZE,
      stack_num=atari.STACK,
      frameskip=atari.FRAME_SKIP,
      # It draws from 0 to one less than it is told.
      noop_max=self._options.noop_max and self._options.noop_max + 1,
      # The environment's own rewards and starts, nothing for the agent's ease.
      reward_clipping=False,
      use_fire_reset=False,
    )
    # What each running game shows; where one ended, the next one's start.
    self._shown = np.empty(self._shape, np.uint8)
    self._lives = np.zeros(self._num, np.int32)

  def reset(self) -> np.ndarray:
    observation, info = self._vector.reset(seed=self._seeds)
    # Seeding again would replay the same games for ever.
    self._seeds = None
    self._shown = _channels_last(observation)
    self._lives = info['lives']
    return super().reset()

  def close(self) -> None:
    self._vector.close()
    # Its threads end with it.
    self._vector = None

  def _begin(self, index: int, out: np.ndarray) -> None:
    # The game has begun by itself, or goes on with its next life.
    out[index] = self._shown[index]

  def _advance(self, actions: np.ndarray) -> stepping.Arrival:
    observation, reward, over, truncated, info = self._vector.step(
      self._discrete(actions)
    )
    self._shown = _channels_last(observation)
    arrival = self._shown
    ended = over | truncated
    if ended.any():
      arrival = arrival.copy()
      arrival[ended] = _channels_last(info['final_obs'][ended])
    # Both at once: the game is over, the limit does not matter any more.
    terminated = over.copy()
    if self._options.life_loss:
      terminated |= (info['lives'] < self._lives) & ~ended
    self._lives = info['lives']
    return stepping.Arrival(
      arrival, reward.astype(np.float32), terminated, truncated & ~over
    )


def _channels_last(observation: np.ndarray) -> np.ndarray:
  """[K, 4, 84, 84] to a new [K, 84, 84, 4]."""
  num, channels, height, width = observation.shape
  result = np.empty((num, height, width, channels), np.uint8)
  for stack, out in zip(observation, result, strict=True):
    # NumPy's transposing copy takes ten times as long.
    cv2.merge(tuple(stack), out)
  return result
