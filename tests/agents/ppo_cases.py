"""A small PPO, its rollouts, and the steps of one as slow sums see them."""

import numpy as np
import tensorflow as tf

from murmuration.agents import ppo
from murmuration.replay import blocks
from tests.agents import unroll_cases as cases

T, K, BLOCKS = cases.T, cases.K, 2
STEPS = T * K * BLOCKS
OPTIONS = {
  'hidden_sizes': (5,),
  'shared_torso': True,
  'unroll_length': T,
  'rollout_steps': STEPS,
  'batch_size': STEPS // 3,
  'epochs': 2,
}
UPDATES = 6


def make_agent(spec=cases.DISCRETE, **options):
  return ppo.PPO(ppo.Config(**{**OPTIONS, **options}), spec)


def make_sample(agent, seeds=range(BLOCKS), num_envs=K):
  made = [cases.make_block(agent, seed, num_envs) for seed in seeds]
  for block in made:
    block.version[...] = 12
  return cases.batch_of(*made)


def arranged(agent, theta, sample, num_envs=K):
  """Minibatches [U, P]."""
  feed = agent.feed(num_envs)
  theta = np.atleast_2d(theta)
  return feed.arrange(
    sample, agent.updates_per_call, len(theta), tf.constant(theta)
  )


def one(batch, update, member=0):
  return tf.nest.map_structure(lambda x: x[update, member], batch)


def slow_steps(agent, theta, sample):
  """Every valid step: its observation and what the loss has to know of it."""
  config, steps = agent.config, []
  for block in (blocks.Block(*(c[i].numpy() for c in sample)) for i in range(
      sample.reward.shape[0])):  # fmt: skip
    for k in range(K):
      after = 0.0  # A_{t+1}
      for t in reversed(range(T)):
        if not block.valid[t, k]:
          after = 0.0
          continue
        value = cases.network(agent, theta, block.observation[t, k])[1]
        arrival, g = block.observation[t + 1, k], config.gamma
        if block.last[t, k]:
          after = 0.0
          arrival = block.final_observation[0, k]
          g *= block.discount[t, k]
        following = cases.network(agent, theta, arrival)[1]
        delta = config.reward_scale * block.reward[t, k] + g * following - value
        after = delta + g * config.gae_lambda * after
        steps.append(
          {
            'observation': block.observation[t, k],
            'action': block.action[t, k],
            'log_mu': block.behaviour[t, k, 0],
            'advantage': after,
            'value': value,
          }
        )
  return steps


def acted(agent, theta, actor, rng, reward):
  """A block of an actor in an environment without a state."""
  num_envs = len(actor.behaviour)
  block = agent.block_layout(num_envs).zeros()
  block.discount[...] = 1.0
  for t in range(agent.unroll_length):
    block.observation[t] = rng.normal(size=(num_envs, 2))
    block.action[t] = actor.act(theta, block.observation[t], 0, rng)
    block.behaviour[t] = actor.behaviour
    if t == 0:
      block.core[...] = actor.core
    block.last[t] = rng.random(num_envs) < 0.2
    block.discount[t] = np.where(block.last[t], 0.0, 1.0)
    actor.ended(block.last[t])
    block.reward[t] = reward(block.observation[t], block.action[t])
  return block


def good(observation, action):
  """Discrete: action 2 where x_0 > 0, else 0. Continuous: a = x."""
  if action.ndim == 1:
    return action == np.where(observation[:, 0] > 0, 2, 0)
  return -np.square(action - observation).sum(axis=1)
