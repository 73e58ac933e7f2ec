"""A small DQN, transitions, and its network layer by layer."""

import numpy as np
import tensorflow as tf

from murmuration.agents import dqn
from murmuration.environment_loops import environments
from murmuration.replay import packing

SPEC = environments.Spec('Test-v0', observation_shape=(2, 2), num_actions=3)
GAMMA = 0.9


def make_agent(**options):
  return dqn.DQN(dqn.Config(**{'hidden_sizes': (5,), **options}), SPEC)


def make_transitions():
  """Each way a window ends, and a place without a transition."""
  rng = np.random.default_rng(0)
  d_t = [
    GAMMA**2,  # a full window of three steps
    GAMMA**0,  # cut after one step by a time limit: it bootstraps
    0.0,  # terminated
    GAMMA,  # cut after two steps by a time limit
    GAMMA**2,  # no transition
  ]
  return packing.Transition(
    o_tm1=rng.normal(size=(5, 2, 2)).astype(np.float32),
    a_tm1=np.array([0, 1, 2, 1, 0], np.int32),
    # The first error lies beyond Huber's bend, and the last would win any max.
    r_t=np.array([4.0, -0.5, 0.3, 0.1, 50.0], np.float32),
    d_t=np.array(d_t, np.float32),
    o_t=rng.normal(size=(5, 2, 2)).astype(np.float32),
    weight=np.array([1, 1, 1, 1, 0], np.float32),
  )


def slow_q(agent, theta, observation):
  """Q(s, .) of one observation, layer by layer."""
  b0, w0, b1, w1 = (a.astype(float) for a in agent.layout.unpack(theta))
  return np.tanh(observation.reshape(-1) @ w0 + b0) @ w1 + b1


def variables_of(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]
