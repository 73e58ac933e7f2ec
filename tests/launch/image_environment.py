"""`image_environment:Dot-v0`: images of bytes, and continuous actions.

A dot is to be pushed to the middle of the image. DotFirst-v0 has channels
first.
"""

import gymnasium
import numpy as np

SIDES = (16, 12)  # pixels
STEPS = 20  # of an episode, which only time ends


class Dot(gymnasium.Env):
  """The dot moves by a pixel where the action says so."""

  observation_space = gymnasium.spaces.Box(0, 255, (*SIDES, 3), np.uint8)
  action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._place = self.np_random.integers(SIDES)
    return self._image(), {}

  def step(self, action):
    moved = self._place + np.rint(action).astype(int)
    self._place = np.clip(moved, 0, np.subtract(SIDES, 1))
    away = np.abs(self._place - np.floor_divide(SIDES, 2)).sum()
    return self._image(), -float(away), False, False, {}

  def _image(self):
    image = np.zeros((*SIDES, 3), np.uint8)
    image[tuple(self._place)] = 255
    return image


class DotFirst(Dot):
  """The same, channels first."""

  observation_space = gymnasium.spaces.Box(0, 255, (3, *SIDES), np.uint8)

  def _image(self):
    return super()._image().transpose(2, 0, 1)


for kind in (Dot, DotFirst):
  gymnasium.register(
    f'{kind.__name__}-v0',
    entry_point=f'{__name__}:{kind.__name__}',
    max_episode_steps=STEPS,
  )
