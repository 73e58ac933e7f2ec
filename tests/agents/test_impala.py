"""IMPALA: its loss by slow sums, how it acts, how its blocks come in."""

import numpy as np
import pytest
from scipy import special
import tensorflow as tf

from agents import base
from agents import impala
from agents import learner as learner_lib
from agents.exchange import local as local_exchange
from agents.unroll import unrolls
from environment_loops import environments
from replay import blocks

DISCRETE = environments.Spec('Test-v0', (2,), 3, max_episode_steps=50)
CONTINUOUS = environments.Spec(
  'Torque-v0', (2,), None, (2,), (-1.0,) * 2, (1.0,) * 2
)
T, K = 4, 3
INFO = base.ActorInfo(0, 1, 0)
OPTIONS = {'hidden_sizes': (5,), 'unroll_length': T, 'batch_size': K}


def _agent(spec=DISCRETE, **options):
  return impala.IMPALA(impala.Config(**{**OPTIONS, **options}), spec)


def _theta(agent, seed=0):
  """Parameters whose policy is far from uniform."""
  theta = agent.initial(seed)
  noise = np.random.default_rng(seed).normal(0, 0.4, theta.shape)
  return theta + np.abs(noise).astype(np.float32)


def _block(agent, seed=0, num_envs=K, length=T):
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
  block.last[1, 0] = block.last[2, 1] = True
  block.discount[1, 0] = 0.0  # terminated; the other is a time limit
  if num_envs > 2:
    block.last[2, 2] = True
    block.valid[2, 2] = False
  return block


def _batch(*columns):
  """Blocks as the loss takes them, leading axis [b]."""
  return blocks.Block(*(tf.constant(np.stack(c)) for c in zip(*columns)))


def _variables(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


def _loss(agent, theta, batch):
  variables = _variables(agent, theta)
  return agent.loss(variables, variables, batch)


def _network(agent, theta, observation):
  """Policy outputs and value of one observation, layer by layer."""
  b0, w0, b1, w1 = (a.astype(float) for a in agent.layout.unpack(theta))
  outputs = np.tanh(observation @ w0 + b0) @ w1 + b1
  return outputs[:-1], outputs[-1]


def _log_pi_and_entropy(agent, outputs, action):
  if agent.spec.discrete:
    log_pi = special.log_softmax(outputs)
    return log_pi[action], -np.sum(np.exp(log_pi) * log_pi)
  mean, raw = np.split(outputs, 2)
  sigma = np.minimum(np.log1p(np.exp(raw)) + 1e-3, 2.0)
  log_pi = -(((action - mean) / sigma) ** 2) / 2 - np.log(sigma)
  entropy = 0.5 * np.log(2 * np.pi * np.e) + np.log(sigma)
  return np.sum(log_pi - 0.5 * np.log(2 * np.pi)), np.sum(entropy)


def slow_loss(agent, theta, block):
  """The loss of docs/agents/impala.md, one sequence and one step at a time."""
  config = agent.config
  policy_losses, squares, entropies = [], [], []
  for k in range(block.reward.shape[1]):
    after = 0.0  # A_{t+1}
    for t in reversed(range(T)):
      outputs, value = _network(agent, theta, block.observation[t, k])
      log_pi, entropy = _log_pi_and_entropy(agent, outputs, block.action[t, k])
      if not block.valid[t, k]:
        after = 0.0
        continue
      terminated = block.last[t, k] and block.discount[t, k] == 0
      truncated = block.last[t, k] and not terminated
      arrival = block.observation[t + 1, k]
      if truncated:
        arrival = block.final_observation[k]
      following = _network(agent, theta, arrival)[1]
      rho = np.exp(log_pi - block.behaviour[t, k, 0])
      if config.correction == 'none':
        rho = 1.0
      reward = block.reward[t, k]
      if config.reward_clip is not None:
        reward = np.clip(reward, -config.reward_clip, config.reward_clip)
      reward = config.reward_scale * reward
      g = 0.0 if terminated else config.gamma
      after = 0.0 if block.last[t, k] else after
      q = reward + g * (following + after)
      delta = min(1.0, rho) * (reward + g * following - value)
      after = delta + g * config.trace_lambda * min(1.0, rho) * after
      policy_losses.append(-min(1.0, rho) * (q - value) * log_pi)
      squares.append(0.5 * after**2)
      entropies.append(entropy)
  return (
    np.mean(policy_losses)
    + config.baseline_cost * np.mean(squares)
    - config.entropy_cost * np.mean(entropies)
  )


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'trace_lambda': 0.7, 'gamma': 0.9},
    {'reward_scale': 0.3, 'reward_clip': 0.5, 'baseline_cost': 0.8},
    {'correction': 'none', 'entropy_cost': 0.2},
  ],
)
@pytest.mark.parametrize('spec', [DISCRETE, CONTINUOUS], ids=lambda s: s.name)
def test_the_loss_is_that_of_one_sequence_and_step_at_a_time(spec, options):
  agent = _agent(spec, **options)
  theta = _theta(agent)
  columns = [_block(agent, seed) for seed in (0, 1)]
  got = _loss(agent, theta, _batch(*columns))
  both = columns[0]._replace(
    **{
      name: np.concatenate([getattr(c, name) for c in columns], axis)
      for name, axis in blocks.ENVIRONMENT_AXIS.items()
    }
  )
  np.testing.assert_allclose(got.loss, slow_loss(agent, theta, both), rtol=1e-4)
  assert set(got.metrics) == set(agent.metrics)
  assert got.priorities.shape == (2,) and (got.priorities.numpy() >= 0).all()


def test_normalised_advantages_do_not_scale_with_the_reward():
  theta = _theta(_agent())
  losses = []
  for scale in (1.0, 10.0):
    agent = _agent(
      normalize_advantages=True, baseline_cost=0.0, entropy_cost=0.0
    )
    block = _block(agent)
    block.last[...] = True
    block.discount[...] = 0.0
    # Without values, advantages are rewards.
    values = agent.layout.unpack(theta)
    values[2][-1] = 0.0
    values[3][:, -1] = 0.0
    block.reward[...] *= scale
    losses.append(_loss(agent, theta, _batch(block)).loss)
  np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_advantages_are_normalised_under_the_policy_and_then_weighted():
  agent = _agent(
    CONTINUOUS,
    normalize_advantages=True,
    baseline_cost=0.0,
    entropy_cost=0.0,
    trace_lambda=0.0,
  )
  theta, block = _theta(agent), _block(agent)
  block.last[...] = True
  block.discount[...] = 0.0
  block.valid[...] = True
  weights, advantages, log_pis = (np.zeros(block.reward.shape) for _ in '123')
  for t, k in np.ndindex(*block.reward.shape):
    head, value = _network(agent, theta, block.observation[t, k])
    log_pi, _ = _log_pi_and_entropy(agent, head, block.action[t, k])
    log_pis[t, k], advantages[t, k] = log_pi, block.reward[t, k] - value
    weights[t, k] = min(1.0, np.exp(log_pi - block.behaviour[t, k, 0]))
  mean = np.average(advantages, weights=weights)
  deviation = np.sqrt(np.average((advantages - mean) ** 2, weights=weights))
  want = -np.mean(weights * (advantages - mean) / deviation * log_pis)
  got = _loss(agent, theta, _batch(block)).loss
  np.testing.assert_allclose(got, want, rtol=1e-4)
  # What the policy would not do any more does not move it, however bad it was.
  block.behaviour[0, 0, 0] = 60.0
  losses = []
  for reward in (-1e3, 1e3):
    block.reward[0, 0] = reward
    losses.append(_loss(agent, theta, _batch(block)).loss)
  np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def _gradient(agent, theta, batch):
  learner = learner_lib.TFLearner(
    agent,
    theta[None],
    [1e-3],
    local_exchange.Local(),
    unrolls.Unrolls(agent.batch_size, batch.reward.shape[-1]),
  )
  arranged = tf.nest.map_structure(lambda x: x[None], batch)
  return learner.gradient(arranged).vector[0].numpy()


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'lstm_size': 4},
    {'stack': 3, 'normalize_observations': True, 'shared_torso': False},
  ],
)
def test_nothing_is_learned_from_what_is_no_experience(options):
  agent = _agent(**options)
  theta = _theta(agent)
  block = _block(agent)
  # Environment 1 had a time limit before: its true end is not this one's.
  block.valid[3, :2] = False
  block.last[3, :2] = True
  expected = _gradient(agent, theta, _batch(block))
  assert np.abs(expected).max() > 0
  # The steps that are masked, the arrival after them, an end nobody reached.
  for t, k in ((2, 2), (3, 0), (3, 1)):
    block.reward[t, k] = 1e3
    block.action[t, k] = 0
    block.behaviour[t, k] = -5.0
  block.observation[3, 1] = block.observation[T, :2] = 50.0
  block.final_observation[[0, 2]] = 50.0
  got = _gradient(agent, theta, _batch(block))
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_a_sequence_with_behaviour_that_is_not_finite_is_left_out():
  agent = _agent()
  theta = _theta(agent)
  block = _block(agent)
  block.valid[:, 1] = False
  expected = _gradient(agent, theta, _batch(block))
  block.valid[:, 1] = True
  block.behaviour[2, 1] = np.nan
  got = _loss(agent, theta, _batch(block))
  assert got.metrics['dropped_sequences'] == 1
  np.testing.assert_allclose(
    _gradient(agent, theta, _batch(block)), expected, rtol=1e-4, atol=1e-6
  )


def test_a_time_limit_is_bootstrapped_from_its_true_end():
  agent = _agent()
  theta = _theta(agent)
  block = _block(agent)
  before = _loss(agent, theta, _batch(block)).loss
  block.final_observation[1] += 1.0
  assert abs(_loss(agent, theta, _batch(block)).loss - before) > 1e-4


@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (DISCRETE, {}),
    (DISCRETE, {'lstm_size': 6}),
    (CONTINUOUS, {'stack': 4, 'shared_torso': False}),
    (CONTINUOUS, {'lstm_size': 6, 'stack': 2, 'tanh_mean': True}),
    (DISCRETE, {'normalize_observations': True}),
  ],
)
def test_without_lag_every_ratio_is_one(spec, options):
  """What the actor said of its actions is what the learner finds."""
  agent = _agent(spec, **options)
  theta = _theta(agent)
  actor = agent.actor(INFO, K)
  rng = np.random.default_rng(3)
  observation = rng.normal(size=(K, 2)).astype(np.float32)
  for _ in range(3):
    block = agent.block_layout(K).zeros()
    block.discount[...] = 1.0
    for t in range(T):
      block.observation[t] = observation
      block.action[t] = actor.act(theta, observation, 0, rng)
      block.behaviour[t] = actor.behaviour
      if t == 0:
        block.core[...] = actor.core
      block.last[t] = rng.random(K) < 0.3
      actor.ended(block.last[t])
      observation = rng.normal(size=(K, 2)).astype(np.float32)
    block.observation[T] = observation
    got = _loss(agent, theta, _batch(block))
    assert got.metrics['rho_deviation'] < 1e-3
    np.testing.assert_allclose(got.metrics['rho_mean'], 1.0, atol=1e-4)
  assert block.last.any() and not block.last.all()


def test_an_environments_actions_do_not_depend_on_the_others():
  agent = _agent(lstm_size=6, stack=2)
  theta = _theta(agent)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(30, 8, 2)).astype(np.float32)
  last = rng.random((30, 8)) < 0.2
  together, alone = agent.actor(INFO, 8), agent.actor(INFO, 1)
  for t in range(30):
    together.act(theta, x[t], 0, rng)
    alone.act(theta, x[t, 3:4], 0, rng)
    np.testing.assert_allclose(
      together.core[3:4], alone.core, rtol=1e-5, atol=1e-6
    )
    together.ended(last[t])
    alone.ended(last[t, 3:4])


def test_new_parameters_act_at_once_and_old_cores_stay():
  agent = _agent(lstm_size=6)
  actor = agent.actor(INFO, K)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(K, 2)).astype(np.float32)
  actor.act(_theta(agent, 0), x, 0, rng)
  actor.act(_theta(agent, 1), x, 0, rng)
  first = actor.behaviour
  other = agent.actor(INFO, K)
  rng = np.random.default_rng(0)
  other.act(_theta(agent, 0), x, 0, rng)
  other.act(_theta(agent, 0), x, 0, rng)
  assert np.abs(first - other.behaviour).max() > 1e-3
  np.testing.assert_array_equal(actor.core, other.core)


def test_members_without_memory_act_together():
  agent = _agent()
  theta = np.stack([_theta(agent, 0), _theta(agent, 1)])
  x = np.zeros((2, 5000, 2), np.float32)
  actions = agent.act(theta, x, 0, np.random.default_rng(0))
  assert actions.shape == (2, 5000) and actions.dtype == np.int32
  for member in range(2):
    outputs, _ = _network(agent, theta[member], np.zeros(2))
    share = np.bincount(actions[member], minlength=3) / 5000
    np.testing.assert_allclose(share, special.softmax(outputs), atol=0.03)
  with pytest.raises(ValueError, match='This policy remembers'):
    _agent(stack=2).act(theta, x, 0, np.random.default_rng(0))


def test_the_greedy_policy_takes_the_likeliest_action():
  agent = _agent()
  theta = _theta(agent)
  x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
  policy = agent.greedy(theta)
  expected = [_network(agent, theta, o)[0].argmax() for o in x]
  np.testing.assert_array_equal(policy(x), expected)
  theta *= -1.0  # the learner goes on
  np.testing.assert_array_equal(policy(x), expected)
  continuous = _agent(CONTINUOUS)
  theta = _theta(continuous)
  means = [_network(continuous, theta, o)[0][:2] for o in x]
  np.testing.assert_allclose(
    continuous.greedy(theta)(x), means, rtol=1e-4, atol=1e-5
  )


def test_a_greedy_policy_forgets_when_it_is_told_to():
  agent = _agent(CONTINUOUS, lstm_size=6, stack=2)
  x = np.random.default_rng(0).normal(size=(3, K, 2)).astype(np.float32)
  policy = agent.greedy(_theta(agent))
  first = policy(x[0])
  assert np.abs(policy(x[0]) - first).max() > 1e-4, 'it must remember'
  policy.ended(np.array([True, False, False]))
  again = policy(x[0])
  np.testing.assert_allclose(again[0], first[0], rtol=1e-5)
  assert np.abs(again[1:] - first[1:]).max() > 1e-4
  policy.reset()
  np.testing.assert_allclose(policy(x[0][:2]), first[:2], rtol=1e-5)


def _numbered(num_blocks, num_envs):
  """Blocks whose rewards say their block, step and environment."""
  number = np.arange(num_blocks)[:, None, None] * 10_000
  step = np.arange(T)[:, None] * 100
  reward = (number + step + np.arange(num_envs)).astype(np.float32)
  layout = _agent().block_layout(num_envs)
  sample = blocks.Block(
    *(np.stack([column] * num_blocks) for column in layout.zeros())
  )
  observation = np.zeros_like(sample.observation)
  observation[:, :T, :, 0] = reward
  return sample._replace(
    reward=reward,
    observation=observation,
    version=np.arange(num_blocks) * 10,
    final_observation=np.repeat(reward[:, 0, :, None], 2, axis=-1),
  )


@pytest.mark.parametrize(
  ('batch_size', 'num_envs', 'updates', 'members'),
  [(6, 6, 2, 1), (12, 6, 2, 1), (2, 6, 6, 1), (3, 6, 4, 2), (6, 6, 2, 2),
   (1, 6, 6, 2)],
)  # fmt: skip
def test_each_sequence_is_learned_from_once_and_in_order(
  batch_size, num_envs, updates, members
):
  feed = unrolls.Unrolls(batch_size, num_envs)
  number = feed.num_blocks(updates, members)
  assert number * num_envs == updates * batch_size * members
  sample = _numbered(number, num_envs)
  batches = feed.arrange(
    blocks.Block(*map(tf.constant, sample)), updates, members
  )
  seen = []
  for update in range(updates):
    for member in range(members):
      batch = blocks.Block(*(column[update, member] for column in batches))
      b = batch.reward.shape[0]
      assert batch.reward.shape == (b, T, batch_size // b)
      assert batch.observation.shape == (b, T + 1, batch_size // b, 2)
      assert batch.core.shape == (b, batch_size // b, 0)
      for index in range(b):
        block = int(batch.reward[index, 0, 0]) // 10_000
        assert batch.version[index] == 10 * block
        envs = (batch.reward[index, 0].numpy() % 100).astype(int)
        np.testing.assert_array_equal(
          batch.reward[index], sample.reward[block][:, envs]
        )
        np.testing.assert_array_equal(
          batch.observation[index], sample.observation[block][:, envs]
        )
        np.testing.assert_array_equal(
          batch.final_observation[index], sample.final_observation[block][envs]
        )
        own = num_envs // members
        assert (envs // own == member).all(), "another member's"
        seen += [(update, block, env) for env in envs]
  assert sorted((block, env) for _, block, env in seen) == [
    (block, env) for block in range(number) for env in range(num_envs)
  ]
  updates_in_block_order = [update for update, block, _ in sorted(
    seen, key=lambda one: one[1])]  # fmt: skip
  if members == 1:
    assert updates_in_block_order == sorted(updates_in_block_order)


@pytest.mark.parametrize(
  ('batch_size', 'num_envs', 'updates', 'members', 'message'),
  [
    (4, 6, 1, 1, 'multiple or a divisor of the environments'),
    (2, 6, 4, 1, 'run.updates_per_call to a multiple of 3'),
    (2, 5, 1, 2, '5 environments'),
  ],
)
def test_batches_that_are_no_blocks_are_refused(
  batch_size, num_envs, updates, members, message
):
  with pytest.raises(ValueError, match=message):
    unrolls.Unrolls(batch_size, num_envs).num_blocks(updates, members)


def test_the_lag_of_a_sample_is_counted_at_the_step_that_uses_it():
  sample = _numbered(4, 6)._replace(version=np.array([0, 3, 5, 5]))
  # Blocks 0 and 1 are used at step 7, blocks 2 and 3 at step 8.
  assert unrolls.policy_lag(sample, 7, updates=2) == (17 / 4, 7)
  # One block for two updates.
  one = _numbered(1, 6)._replace(version=np.array([3]))
  assert unrolls.policy_lag(one, 7, updates=2) == (4.0, 4)


def test_blocks_that_lag_too_far_are_no_experience():
  sample = _numbered(3, 6)._replace(version=np.array([0, 3, 5]))
  sample = blocks.Block(*map(tf.constant, sample))
  same, dropped = unrolls.without_stale(sample, 7, 7)
  assert dropped == 0 and same.valid.numpy().all()
  fewer, dropped = unrolls.without_stale(sample, 8, 4)
  assert dropped == 2
  np.testing.assert_array_equal(
    fewer.valid.numpy().all(axis=(1, 2)), [False, False, True]
  )


def test_members_learn_as_they_would_alone():
  agent = _agent(stack=2, shared_torso=False)
  thetas = np.stack([_theta(agent, seed) for seed in range(2)])
  columns = [_block(agent, seed) for seed in range(2)]
  both = columns[0]._replace(
    **{
      name: np.concatenate([getattr(c, name) for c in columns], axis)
      for name, axis in blocks.ENVIRONMENT_AXIS.items()
    }
  )

  def learn(theta, block, num_envs):
    learner = learner_lib.TFLearner(
      agent,
      theta,
      [1e-2] * len(theta),
      local_exchange.Local(),
      unrolls.Unrolls(K, num_envs),
    )
    learner.step(_batch(block))
    return learner.parameters()

  together = learn(thetas, both, 2 * K)
  for member, block in enumerate(columns):
    alone = learn(thetas[member][None], block, K)[0]
    np.testing.assert_allclose(together[member], alone, rtol=1e-4, atol=1e-5)


def test_the_normalizer_follows_valid_observations():
  agent = _agent(normalize_observations=True)
  block = _block(agent)
  statistics = _loss(agent, agent.initial(0), _batch(block)).statistics
  seen = block.observation[:T][block.valid]
  np.testing.assert_allclose(
    statistics['normalizer/mean'], seen.mean(axis=0), rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(
    statistics['normalizer/variance'], seen.var(axis=0), rtol=1e-4
  )


def test_the_learning_rate_falls_in_a_line_to_zero():
  agent = _agent(anneal_env_steps=10 * T * K)
  got = [
    float(agent.rate_factor(tf.constant(n, tf.int64))) for n in (0, 4, 10, 99)
  ]
  np.testing.assert_allclose(got, [1.0, 0.6, 0.0, 0.0], atol=1e-6)
  assert _agent().rate_factor(tf.constant(3, tf.int64)) is None
  assert agent.rate_end == (10, 'agent.anneal_env_steps', 10 * T * K)


def test_blocks_are_those_of_the_environment():
  layout = _agent(lstm_size=6, stack=3).block_layout(7)
  assert layout == blocks.BlockLayout(
    T, 7, (2,), core_size=2 * 2 + 2 * 6, max_episode_steps=50
  )
  continuous = _agent(CONTINUOUS).block_layout(7)
  assert continuous.action_shape == (2,) and not continuous.discrete
  with pytest.raises(ValueError, match='at most 50 steps'):
    _agent(unroll_length=51).block_layout(7)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'learning_rate': 0.0}, r'agent.learning_rate=0.0 must be a positive'),
    ({'unroll_length': 0}, '--config.agent.unroll_length'),
    ({'batch_size': 2.5}, '--config.agent.batch_size'),
    ({'stack': 0}, '--config.agent.stack'),
    ({'anneal_env_steps': 0}, '--config.agent.anneal_env_steps'),
    ({'max_gradient_norm': -1.0}, '--config.agent.max_gradient_norm'),
    ({'reward_clip': 0.0}, '--config.agent.reward_clip'),
    ({'gamma': 1.1}, 'agent.gamma=1.1 must be between 0 and 1'),
    ({'trace_lambda': -0.1}, 'agent.trace_lambda=-0.1 must be between'),
    ({'entropy_cost': -1.0}, 'agent.entropy_cost=-1.0 must be a number'),
    ({'baseline_cost': float('nan')}, 'agent.baseline_cost=nan'),
    ({'sigma_min': -1e-3}, 'agent.sigma_min=-0.001'),
    (
      {'sigma_min': 1.0, 'sigma_max': 0.5},
      'sigma_min=1.0 must be below agent.sigma_max',
    ),
    ({'lstm_size': -1}, 'agent.lstm_size=-1'),
    ({'hidden_sizes': ()}, 'agent.hidden_sizes'),
    ({'correction': 'retrace'}, "'retrace' is not known.*'vtrace', 'none'"),
    ({'rho_bar': 1.0, 'c_bar': 2.0}, 'c_bar=2.0 is above rho_bar=1.0'),
    ({'rho_bar': 1.0, 'c_bar': None}, 'c_bar=None is above'),
    ({'optimizer': 'lion'}, "optimizer='lion' is not known"),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    impala.Config(**options)


def test_parts_that_do_not_go_together_are_refused():
  with pytest.raises(ValueError, match='lstm_size=4 needs a shared torso'):
    _agent(lstm_size=4, shared_torso=False)
