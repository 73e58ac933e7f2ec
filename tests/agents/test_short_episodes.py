"""Episodes shorter than an unroll, rollouts longer: by direct recursion."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import impala
from murmuration.agents import ppo
from murmuration.environment_loops import environments
from murmuration.replay import adders
from murmuration.replay import blocks
from tests.agents import unroll_cases as cases

LIMIT, T, K, JOINED, ACTORS = 3, 8, 3, 4, 2
SPEC = environments.Spec('Short-v0', (2,), 3, max_episode_steps=LIMIT)
STEPS = T * K * JOINED * ACTORS


class _Items(list):
  """Keeps copies of what an adder writes."""

  def append(self, item, priority):
    super().append(blocks.Block(*(column.copy() for column in item)))


class _Step:
  """A `vector.StepBatch`."""

  def __init__(self, **columns):
    self.__dict__.update(columns)


def _acted(agent, seed, steps, joined):
  """What one actor writes, and its steps by environment.

  A step has observation, action, reward, discount, last, arrival, log_mu; the
  arrival is that of the episode, before any reset.
  """
  rng = np.random.default_rng(seed)
  layout, written = agent.block_layout(K), _Items()
  adder = adders.BlockAdder(
    None, 'queue', layout, joined=joined, writer=written
  )
  record = [[] for _ in range(K)]
  age = np.arange(K) % LIMIT
  observation = rng.normal(size=(K, 2)).astype(np.float32)
  core = np.zeros((K, layout.core_size), np.float32)
  for _ in range(steps):
    action = rng.integers(0, 3, K, np.int32)
    log_mu = np.log(rng.uniform(0.1, 0.9, (K, 1))).astype(np.float32)
    reward = rng.normal(size=K).astype(np.float32)
    ended = rng.random(K) < 0.1
    age += 1
    last = ended | (age == LIMIT)
    discount = np.where(ended, 0, 1).astype(np.float32)
    arrival, begun = rng.normal(size=(2, K, 2)).astype(np.float32)
    following = np.where(last[:, None], begun, arrival)
    step = _Step(
      observation=arrival,
      reward=reward,
      discount=discount,
      last=last,
      next_observation=following,
      valid=None,
    )
    adder.add(observation, action, step, log_mu, core, 0)
    for k in range(K):
      record[k].append(
        (observation[k], action[k], reward[k], discount[k], last[k],
         arrival[k], log_mu[k, 0])
      )  # fmt: skip
    age[last] = 0
    observation = following
  return written, record


def _tensors(items):
  """Blocks [b, ...] of items of one or several blocks."""
  stack = np.stack if np.ndim(items[0].version) == 0 else np.concatenate
  columns = map(stack, zip(*items))
  return blocks.Block(*map(tf.constant, columns))


def test_advantages_of_a_rollout_are_those_of_its_environments():
  """4 unrolls of 8 steps of 3 environments of 2 actors; episodes of 3 steps."""
  config = ppo.Config(
    hidden_sizes=(5,),
    shared_torso=True,
    unroll_length=T,
    rollout_steps=STEPS,
    batch_size=STEPS,
    epochs=1,
    gae_lambda=0.9,
    gamma=0.97,
  )
  agent = ppo.PPO(config, SPEC)
  theta = cases.make_theta(agent)
  items, records = [], []
  for seed in range(ACTORS):
    written, record = _acted(agent, seed, T * JOINED, JOINED)
    items += written
    records += record
  batch = _tensors(items)
  assert batch.valid.numpy().all()
  found = agent.estimate(cases.variables_of(agent, theta), batch, JOINED)

  def value(observation):
    return cases.network(agent, theta, observation)[1]

  expected = np.zeros((ACTORS * K, T * JOINED))
  for row, steps in zip(expected, records):
    after = 0.0
    for t in reversed(range(len(steps))):
      o, _, reward, discount, last, arrival, _ = steps[t]
      g = config.gamma * discount
      delta = reward + g * value(arrival) - value(o)
      row[t] = delta + g * config.gae_lambda * (0.0 if last else after)
      after = row[t]
  # Columns are actors, then their unrolls, then environments.
  got = found.advantages.numpy().reshape(T, ACTORS, JOINED, K)
  got = got.transpose(1, 3, 2, 0).reshape(ACTORS * K, -1)
  np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('memory', [{}, {'stack': 3}, {'lstm_size': 4}])
def test_unrolls_of_one_length_or_another_have_the_same_advantages(memory):
  """The same 32 steps as one unroll and as four."""
  found = []
  for length in (T * JOINED, T):
    config = ppo.Config(
      hidden_sizes=(5,),
      shared_torso=True,
      unroll_length=length,
      rollout_steps=T * JOINED * K,
      batch_size=T * JOINED * K,
      **memory,
    )
    agent = ppo.PPO(config, SPEC)
    theta = cases.make_theta(agent)
    joined = T * JOINED // length
    items, _ = _acted(agent, 0, T * JOINED, joined)
    batch = _tensors(items)
    if memory:
      batch = batch._replace(core=_cores(agent, theta, batch))
    estimates = agent.estimate(cases.variables_of(agent, theta), batch, joined)
    x = estimates.advantages.numpy().reshape(length, joined, K)
    found.append(x.transpose(1, 0, 2).reshape(-1, K))
  np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


def _cores(agent, theta, batch):
  """What an actor would have stored with each of successive blocks [b, ...]."""
  network = agent.network
  parts = network.prepare(agent.layout.unpack(theta[None]))
  core = np.zeros((K, network.core_size), np.float32)
  fresh, found = np.ones(K, bool), []
  for observation, last in zip(batch.observation.numpy(), batch.last.numpy()):
    for t, row in enumerate(last):
      _, following = network.step(parts, observation[t], core, fresh)
      if t == 0:
        found.append(core.copy())
      core, fresh = following, row
  return tf.constant(np.stack(found))


def test_v_trace_of_short_episodes_is_that_of_each_alone():
  config = impala.Config(
    hidden_sizes=(5,), unroll_length=T, batch_size=K, trace_lambda=0.9
  )
  agent = impala.IMPALA(config, SPEC)
  theta = cases.make_theta(agent)
  items, records = _acted(agent, 0, T, 1)
  policy, squares, entropies = [], [], []
  truncations = 0
  for steps in records:
    after = 0.0
    for t in reversed(range(T)):
      o, action, reward, discount, last, arrival, log_mu = steps[t]
      truncations += bool(last and discount)
      outputs, value = cases.network(agent, theta, o)
      log_pi, entropy = cases.log_pi_and_entropy(agent, outputs, action)
      rho = min(1.0, np.exp(log_pi - log_mu))
      g = config.gamma * discount
      after = 0.0 if last else after
      following = cases.network(agent, theta, arrival)[1]
      q = reward + g * (following + after)
      policy.append(-rho * (q - value) * log_pi)
      after = rho * (
        reward + g * following - value + g * config.trace_lambda * after
      )
      squares.append(0.5 * after**2)
      entropies.append(entropy)
  assert truncations > K, 'several in one unroll'
  got = cases.loss_of(agent, theta, _tensors(items)).loss
  expected = (
    np.mean(policy)
    + config.baseline_cost * np.mean(squares)
    - config.entropy_cost * np.mean(entropies)
  )
  np.testing.assert_allclose(got, expected, rtol=1e-4)
