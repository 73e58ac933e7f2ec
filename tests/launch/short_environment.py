"""`short_environment:ShortPendulum-v0`: Pendulum in episodes of 5 steps."""

import gymnasium

gymnasium.register(
  'ShortPendulum-v0',
  entry_point='gymnasium.envs.classic_control:PendulumEnv',
  max_episode_steps=5,
)
