"""A small DDPG, transitions, and its networks layer by layer in float64."""

import numpy as np
import tensorflow as tf

from murmuration.agents import ddpg
from murmuration.environment_loops import environments
from murmuration.replay import packing

GAMMA = 0.9
SPEC = environments.Spec('Test-v0', (2, 2), None, (3,), (-2.0,) * 3, (2.0,) * 3)
LAYOUT = packing.TransitionLayout((2, 2), (3,), discrete=False)


def make_agent(**options):
  sizes = {'policy_sizes': (5,), 'critic_sizes': (6,), 'activation': 'tanh'}
  return ddpg.DDPG(ddpg.Config(**{**sizes, 'gamma': GAMMA, **options}), SPEC)


def make_theta(agent, seed):
  """Parameters whose policy is not yet near zero, and some statistics."""
  theta = agent.initial(seed)
  theta[agent.layout.groups['policy']] *= 3.0
  if 'normalizer' in agent.layout.groups:
    rng = np.random.default_rng(seed)
    theta[agent.layout.groups['normalizer']] = np.concatenate(
      [[0.3], rng.normal(size=4), rng.uniform(0.5, 2.0, size=4)]
    )
  return theta


def make_transitions(size=5, seed=0):
  """A full window, cuts by time limits, a termination, and no transition."""
  rng = np.random.default_rng(seed)
  ends = [GAMMA**2, GAMMA**0, 0.0, GAMMA, GAMMA**2]
  weight = [1, 1, 1, 1, 0]
  return packing.Transition(
    o_tm1=rng.normal(size=(size, 2, 2)).astype(np.float32),
    a_tm1=rng.uniform(-1, 1, size=(size, 3)).astype(np.float32),
    r_t=np.resize([4.0, -0.5, 0.3, 0.1, 50.0], size).astype(np.float32),
    d_t=np.resize(ends, size).astype(np.float32),
    o_t=rng.normal(size=(size, 2, 2)).astype(np.float32),
    weight=np.resize(weight, size).astype(np.float32),
  )


def tensors(transition):
  return packing.Transition(*map(tf.constant, transition))


def variables_of(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


class Slow:
  """The networks, layer by layer, in float64."""

  def __init__(self, agent, theta, scale_of=None):
    variables = agent.layout.unpack(theta.astype(float))
    self.by_name = dict(
      zip([v.name for v in agent.layout.variables], variables)
    )
    self.scale = (scale_of or self).by_name

  def _mlp(self, name, x):
    for i in (0, 1):
      w, b = (self.by_name[f'{name}/linear_{i}/{k}'] for k in 'wb')
      x = x @ w + b
      if i == 0:
        x = np.tanh(x)
    return x

  def see(self, observation):
    x = observation.reshape(-1).astype(float)
    if 'normalizer/mean' in self.scale:
      deviation = np.sqrt(self.scale['normalizer/variance'] + 1e-6)
      x = np.clip((x - self.scale['normalizer/mean']) / deviation, -10, 10)
    return x

  def preactivation(self, observation):
    return self._mlp('policy', self.see(observation))

  def mu(self, observation):
    return np.tanh(self.preactivation(observation))

  def q(self, observation, action, critic=0):
    x = np.concatenate([self.see(observation), action])
    return self._mlp(f'critic_{critic}', x)[0]


def gradient_of(agent, theta, theta_hat, transition, importance=None):
  variables = variables_of(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    loss = agent.loss(
      variables, variables_of(agent, theta_hat), tensors(transition), importance
    ).loss
  found = tape.gradient(
    loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return agent.layout.pack([g.numpy() for g in found])
