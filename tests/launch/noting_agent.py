"""DQN whose actors note, in the file of NOTED, what each of their acts got."""

from __future__ import annotations

import copy
import os

from murmuration.agents import dqn


class Noting(dqn.DQN):
  """Notes: process, environment steps so far, the next random number."""

  config: dqn.Config
  act = dqn.DQN.act

  def actor(self, info, num_envs):
    actor = super().actor(info, num_envs)
    act, file = actor.act, open(os.environ['NOTED'], 'a', buffering=1)

    def noted(theta, observation, steps, rng):
      drawn = copy.deepcopy(rng).random()
      file.write(f'{os.getpid()} {steps} {drawn}\n')
      return act(theta, observation, steps, rng)

    actor.act = noted
    return actor
