"""`unbounded_environment:Unbounded-v0`: actions without finite bounds."""

import gymnasium
import numpy as np


class Unbounded(gymnasium.Env):
  """It is looked at and refused: nobody ever steps it."""

  observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
  action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


gymnasium.register('Unbounded-v0', entry_point=f'{__name__}:Unbounded')
