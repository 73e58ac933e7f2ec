"""CartPole-v1 without its velocities: a policy without memory cannot hold it.

  python launch/run.py impala:cartpole \\
    --config.environment=examples.position_cartpole:PositionCartPole \\
    --config.agent.lstm_size=64
"""

import gymnasium
import numpy as np

_SEEN = (0, 2)  # place of the cart and angle of the pole


class PositionCartPole(gymnasium.ObservationWrapper):
  """Observations are float32 [2]; rewards and ends are those of CartPole-v1."""

  def __init__(self, render_mode: str | None = None):
    super().__init__(gymnasium.make('CartPole-v1', render_mode=render_mode))
    whole = self.env.observation_space
    assert isinstance(whole, gymnasium.spaces.Box)
    low, high = whole.low[[*_SEEN]], whole.high[[*_SEEN]]
    self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

  def observation(self, observation):
    return observation[[*_SEEN]]
