"""CartPole-v1 whose rewards are too large for float32 gradients."""

from gymnasium.envs.classic_control import cartpole


class Always(cartpole.CartPoleEnv):
  """Each reward is 1e30."""

  max_episode_steps = 500
  first: int | None = None  # steps with such rewards; None: all

  def __init__(self):
    super().__init__()
    self._made = 0

  def step(self, action):
    observation, reward, *rest = super().step(action)
    self._made += 1
    if self.first is None or self._made <= self.first:
      reward = 1e30
    return observation, reward, *rest


class AtFirst(Always):
  """The first 50 rewards are."""

  first = 50
