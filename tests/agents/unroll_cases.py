"""Cases of IMPALA and PPO: blocks, and their network layer by layer."""

import numpy as np
from scipy import special
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import impala
from murmuration.environment_loops import environments
from murmuration.replay import blocks

DISCRETE = environments.Spec('Test-v0', (2,), 3, max_episode_steps=50)
CONTINUOUS = environments.Spec(
  'Torque-v0', (2,), None, (2,), (-1.0,) * 2, (1.0,) * 2
)
T, K = 4, 3
INFO = base.ActorInfo(0, 1, 0)


def make_impala(spec=DISCRETE, **options):
  sizes = {'hidden_sizes': (5,), 'unroll_length': T, 'batch_size': K}
  return impala.IMPALA(impala.Config(**{**sizes, **options}), spec)


def make_theta(agent, seed=0):
  """Parameters whose policy is far from uniform."""
  theta = agent.initial(seed)
  noise = np.random.default_rng(seed).normal(0, 0.4, theta.shape)
  return theta + np.abs(noise).astype(np.float32)


def make_block(agent, seed=0, num_envs=K):
  """Both kinds of end, a step that is no experience, ratios on both sides."""
  rng = np.random.default_rng(seed)
  block = agent.block_layout(num_envs).zeros()
  for name in ('observation', 'final_observation', 'reward', 'core'):
    column = getattr(block, name)
    column[...] = rng.normal(size=column.shape)
  if agent.spec.discrete:
    block.action[...] = rng.integers(0, 3, block.action.shape)
    block.behaviour[...] = np.log(rng.uniform(0.1, 0.9, block.behaviour.shape))
  else:
    block.action[...] = rng.normal(size=block.action.shape)
    block.behaviour[...] = rng.normal(-3.0, 1.0, block.behaviour.shape)
  block.discount[...] = 1.0
  block.last[1, 0] = block.last[2, 1] = block.last[2, 2] = True
  block.discount[1, 0] = 0.0  # terminated; the others are time limits
  block.valid[2, 2] = False
  return block


def batch_of(*columns):
  """Blocks as the loss takes them, leading axis [b]."""
  return blocks.Block(*(tf.constant(np.stack(c)) for c in zip(*columns)))


def variables_of(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


def loss_of(agent, theta, batch):
  variables = variables_of(agent, theta)
  return agent.loss(variables, variables, batch)


def network(agent, theta, observation):
  """Policy outputs and value of one observation, layer by layer."""
  b0, w0, b1, w1, *free = (a.astype(float) for a in agent.layout.unpack(theta))
  outputs = np.tanh(observation @ w0 + b0) @ w1 + b1
  return np.concatenate([outputs[:-1], *free]), outputs[-1]


def log_pi_and_entropy(agent, outputs, action):
  if agent.spec.discrete:
    log_pi = special.log_softmax(outputs)
    return log_pi[action], -np.sum(np.exp(log_pi) * log_pi)
  mean, raw = np.split(outputs, 2)
  sigma = np.minimum(np.log1p(np.exp(raw)) + 1e-3, 2.0)
  log_pi = -(((action - mean) / sigma) ** 2) / 2 - np.log(sigma)
  entropy = 0.5 * np.log(2 * np.pi * np.e) + np.log(sigma)
  return np.sum(log_pi - 0.5 * np.log(2 * np.pi)), np.sum(entropy)
