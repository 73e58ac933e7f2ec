"""Agents that have only what agents/base.py asks for."""

import types

import numpy as np
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import optimizers
from murmuration.agents import parameters
from murmuration.environment_loops import environments

SPEC = environments.Spec('Test-v0', observation_shape=(3,), num_actions=2)


class Bare(base.Agent):
  """Only what is asked for, with an `act` of its own."""

  name, spec, gamma, n_step, batch_size = 'bare', SPEC, 0.9, 1, 8
  learning_rate, metrics = 0.1, {'loss': 'mean'}
  optimizer, target_update = optimizers.SGD(), base.TargetUpdate(1)
  layout = parameters.Layout([('w', (3,)), ('seen', (2,))])
  statistics = 'seen'

  def initial(self, seed):
    return np.full(5, seed, np.float32)

  def loss(self, variables, target_variables, batch, importance=None):
    loss = tf.reduce_sum(variables[0] ** 2)
    statistics = {self.statistics: variables[1] + 1}
    return base.LossOutput(loss, None, {'loss': loss}, statistics)

  def act(self, theta, observation, actor_steps, rng):
    return np.full(observation.shape[:2], 1)

  def exploration(self, actor_steps):
    return 0.0

  def greedy(self, theta):
    return lambda observation: np.zeros(len(observation))


class ByActor(Bare):
  """The same, with an actor that gives the first number of theta."""

  act = base.Agent.act

  def actor(self, info, num_envs):
    return types.SimpleNamespace(
      act=lambda theta, *unused: np.full(num_envs, theta[0]),
      ended=lambda last: None,
    )
