"""A2C is the unroll agent with the n-step returns of A3C."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import a2c
from murmuration.agents import impala
from murmuration.environment_loops import environments
from murmuration.replay import blocks

SPEC = environments.Spec('Test-v0', (2,), 3)
T, K = 5, 4


def _agent(**options):
  return a2c.A2C(a2c.Config(hidden_sizes=(6,), batch_size=K, **options), SPEC)


def _block(agent):
  rng = np.random.default_rng(0)
  block = agent.block_layout(K).zeros()
  for name in ('observation', 'final_observation', 'reward'):
    column = getattr(block, name)
    column[...] = rng.normal(size=column.shape)
  block.action[...] = rng.integers(0, 3, (T, K))
  block.discount[...] = 1.0
  block.last[2, 0] = block.last[3, 1] = block.last[T - 1, 2] = True
  block.discount[2, 0] = 0.0
  # Far from the policy: on-policy returns must not look at it.
  block.behaviour[...] = rng.normal(-2.0, 1.0, (T, K, 1))
  return block


def slow_loss(agent, theta, block):
  """A3C, Algorithm S3: n-step returns, backwards. With lambda: GAE's."""
  b0, w0, b1, w1 = (a.astype(float) for a in agent.layout.unpack(theta))
  config = agent.config

  def outputs(observation):
    return np.tanh(observation @ w0 + b0) @ w1 + b1

  policy, value, entropy = [], [], []
  for k in range(K):
    ret = after = outputs(block.observation[T, k])[-1]
    for t in reversed(range(T)):
      if block.last[t, k]:
        ret = 0.0
        if block.discount[t, k] == 1:
          ret = outputs(block.final_observation[0, k])[-1]
        after = ret
      # A_t = r + gamma V' - V + gamma lambda A', and V + A is the return.
      mixed = config.trace_lambda * ret + (1 - config.trace_lambda) * after
      ret = block.reward[t, k] + config.gamma * mixed
      *logits, v = outputs(block.observation[t, k])
      after = v
      log_pi = logits - np.log(np.sum(np.exp(logits)))
      policy.append(-(ret - v) * log_pi[block.action[t, k]])
      value.append(0.5 * (ret - v) ** 2)
      entropy.append(-np.sum(np.exp(log_pi) * log_pi))
  return (
    np.mean(policy)
    + config.baseline_cost * np.mean(value)
    - config.entropy_cost * np.mean(entropy)
  )


@pytest.mark.parametrize('lambda_', [1.0, 0.95, 0.0])
def test_the_loss_has_n_step_returns_or_those_of_gae(lambda_):
  agent = _agent(trace_lambda=lambda_)
  theta = agent.initial(0) + np.float32(0.2)
  block = _block(agent)
  variables = [tf.constant(v) for v in agent.layout.unpack(theta)]
  batch = blocks.Block(*(tf.constant(column[None]) for column in block))
  got = agent.loss(variables, variables, batch).loss
  np.testing.assert_allclose(got, slow_loss(agent, theta, block), rtol=1e-4)


def test_on_policy_v_trace_is_the_same():
  theta = _agent().initial(0) + np.float32(0.2)
  losses = []
  for correction in ('none', 'vtrace'):
    agent = _agent(correction=correction)
    variables = [tf.constant(v) for v in agent.layout.unpack(theta)]
    block = _block(agent)
    actor_outputs = agent.network.step(
      agent.network.prepare(agent.layout.unpack(theta[None])),
      block.observation[:T].reshape(-1, 2),
      np.zeros((T * K, 0), np.float32),
      np.zeros(T * K, bool),
    )[0]
    log_pi = agent.head.log_prob(
      tf.constant(actor_outputs), tf.constant(block.action.reshape(-1))
    )
    block.behaviour[...] = log_pi.numpy().reshape(T, K, 1)
    batch = blocks.Block(*(tf.constant(column[None]) for column in block))
    losses.append(agent.loss(variables, variables, batch).loss)
  np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_it_is_the_unroll_agent_under_its_own_name():
  agent = _agent()
  assert isinstance(agent, impala.IMPALA) and agent.name == 'a2c'
  assert agent.block_layout(K).unroll_length == T


def test_a_lambda_below_one_corrects_no_lag():
  with pytest.raises(ValueError, match='agent.trace_lambda=0.9 is that of GAE'):
    a2c.Config(trace_lambda=0.9, correction='vtrace')
  with pytest.raises(ValueError, match='agent.gamma=2.0'):
    a2c.Config(gamma=2.0)
