"""PPO: its loss by slow sums, its minibatches, and that it learns."""

import numpy as np
import pytest
from scipy import special
import tensorflow as tf

from agents import base
from agents import learner
from agents import ppo
from agents.exchange import local as local_exchange
from configs import ppo as presets
from environment_loops import environments
from replay import blocks

DISCRETE = environments.Spec('Test-v0', (2,), 3, max_episode_steps=50)
CONTINUOUS = environments.Spec(
  'Torque-v0', (2,), None, (2,), (-1.0,) * 2, (1.0,) * 2
)
INFO = base.ActorInfo(0, 1, 0)
T, K, BLOCKS = 4, 3, 2
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


def _agent(spec=DISCRETE, **options):
  return ppo.PPO(ppo.Config(**{**OPTIONS, **options}), spec)


def _theta(agent, seed=0):
  """Parameters whose policy is far from uniform."""
  theta = agent.initial(seed)
  noise = np.random.default_rng(seed).normal(0, 0.4, theta.shape)
  return theta + np.abs(noise).astype(np.float32)


def _block(agent, seed=0, num_envs=K):
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
  block.version[...] = 12
  return block


def _sample(agent, seeds=range(BLOCKS), num_envs=K):
  columns = zip(*(_block(agent, seed, num_envs) for seed in seeds))
  return blocks.Block(*(tf.constant(np.stack(c)) for c in columns))


def _arranged(agent, theta, sample, num_envs=K):
  """Minibatches [U, P]."""
  feed = agent.feed(num_envs)
  theta = np.atleast_2d(theta)
  return feed.arrange(
    sample, agent.updates_per_call, len(theta), tf.constant(theta)
  )


def _one(batch, update, member=0):
  return tf.nest.map_structure(lambda x: x[update, member], batch)


def _loss(agent, theta, minibatch):
  variables = [tf.constant(v) for v in agent.layout.unpack(theta)]
  return agent.loss(variables, variables, minibatch)


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
        value = _network(agent, theta, block.observation[t, k])[1]
        arrival, g = block.observation[t + 1, k], config.gamma
        if block.last[t, k]:
          after = 0.0
          arrival = block.final_observation[k]
          g *= block.discount[t, k]
        following = _network(agent, theta, arrival)[1]
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


def slow_loss(agent, theta, steps):
  """L of docs/agents/ppo.md."""
  config = agent.config
  advantages = np.array([step['advantage'] for step in steps])
  if config.normalize_advantages:
    advantages = (advantages - advantages.mean()) / advantages.std()
  total = 0.0
  for step, advantage in zip(steps, advantages):
    outputs, value = _network(agent, theta, step['observation'])
    log_pi, entropy = _log_pi_and_entropy(agent, outputs, step['action'])
    rho = np.exp(log_pi - step['log_mu'])
    near = min(max(rho, 1 - config.clip), 1 + config.clip)
    ret = step['value'] + step['advantage']
    square = (value - ret) ** 2
    if config.value_clip is not None:
      limit = config.value_clip
      moved = np.clip(value - step['value'], -limit, limit)
      square = max(square, (step['value'] + moved - ret) ** 2)
    total -= min(rho * advantage, near * advantage)
    total += config.value_cost * square - config.entropy_cost * entropy
  return total / len(steps)


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'normalize_advantages': False, 'gamma': 0.9, 'gae_lambda': 0.7},
    {'reward_scale': 0.3, 'clip': 0.1, 'value_cost': 0.8},
    {'value_clip': 0.05, 'entropy_cost': 0.2},
  ],
)
@pytest.mark.parametrize('spec', [DISCRETE, CONTINUOUS], ids=lambda s: s.name)
def test_the_loss_is_that_of_one_step_at_a_time(spec, options):
  agent = _agent(spec, batch_size=STEPS, epochs=1, **options)
  before, theta = _theta(agent, 0), _theta(agent, 1)
  sample = _sample(agent)
  minibatch = _one(_arranged(agent, before, sample), 0)
  got = _loss(agent, theta, minibatch)
  steps = slow_steps(agent, before, sample)
  assert len(steps) == STEPS - BLOCKS
  np.testing.assert_allclose(
    got.loss, slow_loss(agent, theta, steps), rtol=1e-4
  )
  # The learner adds the share of updates that moved nothing.
  assert {*got.metrics, 'stopped_updates'} == set(agent.metrics)
  assert got.metrics['dropped_steps'] == BLOCKS
  assert 0 < got.metrics['clip_fraction'] < 1


def _rows(minibatch):
  """Observations, actions and returns of the steps of a minibatch."""
  steps = minibatch.block.reward.shape[1]
  return [
    tuple(np.round(np.concatenate([x, [a, r]]), 5))
    for x, a, r in zip(
      minibatch.block.observation[:, :steps].numpy().reshape(-1, 2),
      minibatch.block.action.numpy().reshape(-1),
      minibatch.returns.numpy().reshape(-1),
    )
  ]


@pytest.mark.parametrize('memory', [False, True])
def test_each_step_is_learned_from_once_in_each_epoch(memory):
  agent = _agent(**({'stack': 2, 'batch_size': 2 * T} if memory else {}))
  assert agent.updates_per_call == UPDATES
  theta = _theta(agent)
  sample = _sample(agent)
  batch = _arranged(agent, theta, sample)
  rows = [_rows(_one(batch, update)) for update in range(UPDATES)]
  half = UPDATES // 2
  epochs = [sum(rows[:half], []), sum(rows[half:], [])]
  assert len(set(epochs[0])) == STEPS
  assert sorted(epochs[0]) == sorted(epochs[1])
  assert epochs[0] != epochs[1], 'each epoch has an order of its own'
  acted_on = batch.block.observation[:half, 0, :, :-1].numpy()
  np.testing.assert_array_equal(
    np.unique(acted_on.reshape(-1, 2), axis=0),
    np.unique(sample.observation[:, :T].numpy().reshape(-1, 2), axis=0),
  )
  if not memory:
    expected = [
      step['advantage'] + step['value']
      for step in slow_steps(agent, theta, sample)
    ]
    valid = batch.mask[:half].numpy() > 0
    np.testing.assert_allclose(
      np.sort(batch.returns[:half].numpy()[valid]),
      np.sort(expected),
      rtol=1e-4,
      atol=1e-5,
    )


def test_a_rollout_is_shuffled_alike_in_every_run_but_unlike_the_next():
  agent = _agent()
  theta, sample = _theta(agent), _sample(agent)
  first = _arranged(agent, theta, sample)
  again = _arranged(agent, theta, sample)
  np.testing.assert_array_equal(first.returns, again.returns)
  later = sample._replace(version=sample.version + UPDATES)
  assert (_arranged(agent, theta, later).returns != first.returns).numpy().any()


@pytest.mark.parametrize('memory', [False, True])
def test_members_see_their_own_environments_as_if_alone(memory):
  options = {'stack': 2, 'batch_size': 2 * T} if memory else {}
  agent = _agent(**options)
  thetas = np.stack([_theta(agent, 0), _theta(agent, 1)])
  sample = _sample(agent, num_envs=2 * K)
  both = _arranged(agent, thetas, sample, 2 * K)
  for member in range(2):
    own = slice(member * K, (member + 1) * K)
    columns = sample._asdict()
    for name, axis in blocks.ENVIRONMENT_AXIS.items():
      index = (slice(None),) * (axis + 1) + (own,)
      columns[name] = sample._asdict()[name][index]
    alone = _arranged(agent, thetas[member], blocks.Block(**columns))
    for got, expected in zip(
      tf.nest.flatten(_one(both, 3, member)), tf.nest.flatten(_one(alone, 3))
    ):
      np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_shuffles_depend_on_the_seed_of_the_run_and_on_nothing_else():
  agent, sample = _agent(), _sample(_agent())
  theta = tf.constant(agent.initial(0)[None])

  def first_minibatches(seed):
    feed = agent.feed(K, seed=seed)
    arranged = feed.arrange(sample, agent.updates_per_call, 1, theta)
    return arranged.block.reward.numpy()

  np.testing.assert_array_equal(first_minibatches(3), first_minibatches(3))
  assert (first_minibatches(3) != first_minibatches(4)).any()
  np.testing.assert_allclose(
    first_minibatches(3).sum(), first_minibatches(4).sum(), rtol=1e-5
  )


class _Feed:
  """The agent's own, with the parameters of the learner."""

  def __init__(self, agent, num_envs):
    self._feed = agent.feed(num_envs)

  def arrange(self, sample, updates, members, theta=None):
    theta = self.learner.theta.read_value() if theta is None else theta
    return self._feed.arrange(sample, updates, members, theta)

  def unpack(self, batch):
    return self._feed.unpack(batch)


def _learner(agent, theta, num_envs=K):
  feed = _Feed(agent, num_envs)
  feed.learner = learner.TFLearner(
    agent,
    np.atleast_2d(theta),
    [agent.config.learning_rate] * len(np.atleast_2d(theta)),
    local_exchange.Local(),
    feed,
    updates_per_call=agent.updates_per_call,
  )
  return feed.learner


def _acted(agent, theta, actor, rng, reward):
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


def _good(observation, action):
  """Discrete: action 2 where x_0 > 0, else 0. Continuous: a = x."""
  if action.ndim == 1:
    return action == np.where(observation[:, 0] > 0, 2, 0)
  return -np.square(action - observation).sum(axis=1)


@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (
      CONTINUOUS,
      {'normalize_observations': True, 'stack': 2, 'batch_size': 64},
    ),
    (
      DISCRETE,
      {
        'lstm_size': 4,
        'unroll_length': 3,
        'rollout_steps': 48,
        'batch_size': 24,
      },
    ),
  ],
)
def test_what_pays_becomes_likelier(spec, options):
  options = {
    'hidden_sizes': (16,), 'unroll_length': 8, 'rollout_steps': 128,
    'batch_size': 32, 'epochs': 4, 'learning_rate': 5e-3, 'gamma': 0.0,
    'entropy_cost': 0.0, **options,
  }  # fmt: skip
  agent = _agent(spec, **options)
  learner = _learner(agent, agent.initial(0), num_envs=16)
  actor, rng = agent.actor(INFO, 16), np.random.default_rng(0)
  returns = []
  for _ in range(25):
    theta = learner.parameters()[0]
    block = _acted(agent, theta, actor, rng, _good)
    result = learner.step(
      blocks.Block(*(tf.constant(column[None]) for column in block))
    )
    returns.append(block.reward.mean())
    assert result.metrics['lag_deviation'][0] < 1e-4
  assert not result.skipped.any() and not result.broken.any()
  assert np.mean(returns[-3:]) > np.mean(returns[:3]) + 0.2


@pytest.mark.parametrize(
  ('spec', 'options'),
  [
    (DISCRETE, {}),
    (CONTINUOUS, {'normalize_observations': True}),
    (CONTINUOUS, {'stack': 3, 'batch_size': 2 * T}),
    (DISCRETE, {'lstm_size': 4, 'batch_size': 2 * T}),
  ],
)
def test_before_it_moves_the_policy_of_a_minibatch_is_the_one_that_acted(
  spec, options
):
  agent = _agent(spec, **options)
  theta = _theta(agent)
  actor, rng = agent.actor(INFO, K), np.random.default_rng(0)
  sequence = [_acted(agent, theta, actor, rng, _good) for _ in range(3)]
  # Not the first block: episodes are under way, and others end within.
  columns = zip(*sequence[1:])
  sample = blocks.Block(*(tf.constant(np.stack(c)) for c in columns))
  assert sample.last.numpy()[:, :-1].any()
  batch = _arranged(agent, theta, sample)
  for update in range(UPDATES):
    found = _loss(agent, theta, _one(batch, update)).metrics
    assert abs(found['kl']) < 1e-5 and found['clip_fraction'] == 0


def test_acting_with_old_parameters_shows_as_lag():
  agent = _agent()
  rng = np.random.default_rng(0)
  block = _acted(agent, _theta(agent, 0), agent.actor(INFO, K), rng, _good)
  sample = blocks.Block(*(tf.constant(np.stack([c] * 2)) for c in block))
  same = _arranged(agent, _theta(agent, 0), sample)
  other = _arranged(agent, _theta(agent, 1), sample)
  assert np.abs(same.lag).max() < 1e-5 and np.min(other.lag) > 0.01


def test_a_time_limit_is_bootstrapped_and_a_termination_is_not():
  agent = _agent()
  theta, sample = _theta(agent), _sample(agent)
  before = np.sort(_arranged(agent, theta, sample).returns.numpy().ravel())
  final = sample.final_observation.numpy()
  final[:, [0, 2]] += 5.0  # a termination, and a step that is no experience
  same = _arranged(
    agent, theta, sample._replace(final_observation=tf.constant(final))
  )
  np.testing.assert_array_equal(np.sort(same.returns.numpy().ravel()), before)
  final[:, 1] += 5.0
  moved = _arranged(
    agent, theta, sample._replace(final_observation=tf.constant(final))
  )
  assert np.abs(np.sort(moved.returns.numpy().ravel()) - before).max() > 0.01


def test_the_normalizer_moves_once_in_a_rollout_and_counts_each_step_once():
  agent = _agent(normalize_observations=True)
  theta, sample = _theta(agent), _sample(agent)
  names = [v.name for v in agent.layout.variables]
  batch = _arranged(agent, theta, sample)
  now = dict(zip(names, agent.layout.unpack(theta)))
  for update in range(UPDATES):
    found = _loss(agent, theta, _one(batch, update)).statistics
    assert set(found) == {n for n in names if n.startswith('normalizer')}
    moved = [not np.array_equal(found[name], now[name]) for name in found]
    assert all(moved) if update == UPDATES - 1 else not any(moved)
  learner = _learner(agent, agent.initial(0))
  learner.step(sample)
  after = dict(zip(names, agent.layout.unpack(learner.parameters()[0])))
  valid = sample.valid.numpy()
  seen = sample.observation[:, :T].numpy()[valid]
  np.testing.assert_allclose(
    after['normalizer/memory'], valid.sum() / 1e6, rtol=1e-4
  )
  np.testing.assert_allclose(
    after['normalizer/mean'], seen.mean(axis=0), rtol=1e-3, atol=1e-4
  )


@pytest.mark.parametrize('compiled', [False, True])
def test_far_from_the_policy_that_acted_nothing_moves(compiled):
  free, held = _agent(), _agent(target_kl=0.01)
  theta, sample = _theta(free), _sample(free)
  minibatch = _one(_arranged(free, theta, sample), 0)
  assert _loss(free, theta, minibatch).metrics['kl'] > 0.015
  for agent in (free, held):
    agent.compiled = compiled
    learner = _learner(agent, theta)
    saved = learner.save()
    # Momentum of earlier rollouts, which a gradient of zero would not end.
    saved['slot_0'][...], saved['slot_1'][...] = 0.1, 0.01
    learner.restore(saved)
    result = learner.step(sample)
    after = learner.save()
    for name in ('theta', 'slot_0', 'slot_1', 'steps'):
      same = np.array_equal(saved[name], after[name])
      assert same == (agent is held), name
    assert after['updates'] == UPDATES and not result.skipped.any()
    assert result.metrics['stopped_updates'] == (agent is held)


def test_from_the_first_update_too_far_on_the_rest_of_a_rollout_is_left():
  # The rate is too small to move the policy: only one step of the rollout is
  # far from it, and so each epoch's minibatch that has this step.
  agent = _agent(target_kl=0.01, learning_rate=1e-8, epochs=2)
  theta, rng = _theta(agent), np.random.default_rng(0)
  actor = agent.actor(INFO, K)
  rollout = [_acted(agent, theta, actor, rng, _good) for _ in range(BLOCKS)]
  rollout[0].behaviour[1, 1] -= 3.0
  sample = blocks.Block(*(tf.constant(np.stack(c)) for c in zip(*rollout)))
  batch = _arranged(agent, theta, sample)
  far = [
    float(_loss(agent, theta, _one(batch, update)).metrics['kl']) > 0.015
    for update in range(UPDATES)
  ]
  assert sum(far) == 2 and far.index(True) > 0
  learner = _learner(agent, theta)
  result = learner.step(sample)
  moved = far.index(True)
  assert learner.save()['steps'] == moved
  np.testing.assert_allclose(
    result.metrics['stopped_updates'], 1 - moved / UPDATES, rtol=1e-6
  )
  # The next rollout starts with a free hand.
  learner.step(sample)
  assert learner.save()['steps'] == 2 * moved


def test_a_sequence_with_behaviour_that_is_not_finite_is_left_out():
  agent = _agent(batch_size=STEPS)
  theta, sample = _theta(agent), _sample(agent)
  valid = sample.valid.numpy()
  valid[0, :, 1] = False
  expected = _loss(
    agent,
    theta,
    _one(_arranged(agent, theta, sample._replace(valid=valid)), 0),
  )
  behaviour = sample.behaviour.numpy()
  behaviour[0, 2, 1] = np.nan
  got = _loss(
    agent,
    theta,
    _one(_arranged(agent, theta, sample._replace(behaviour=behaviour)), 0),
  )
  assert got.metrics['dropped_steps'] == BLOCKS + T
  np.testing.assert_allclose(got.loss, expected.loss, rtol=1e-5)


def test_the_learning_rate_falls_from_rollout_to_rollout():
  agent = _agent(anneal_env_steps=4 * STEPS)
  updates = tf.range(UPDATES * 6, dtype=tf.int64)
  got = [float(agent.rate_factor(update)) for update in updates]
  expected = np.repeat([1.0, 0.75, 0.5, 0.25, 0.0, 0.0], UPDATES)
  np.testing.assert_allclose(got, expected)
  assert _agent().rate_factor(updates[0]) is _agent().rate_end is None
  assert agent.rate_end.update == got.index(0.0)
  # A rollout that begins within the budget still has a rate.
  longer = _agent(anneal_env_steps=4 * STEPS + 1).rate_end
  assert longer == (5 * UPDATES, 'agent.anneal_env_steps', 4 * STEPS + 1)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'batch_size': 7}, 'agent.rollout_steps=24 is no whole number of'),
    ({'stack': 2, 'batch_size': 6}, 'agent.batch_size=6 is no whole number'),
    ({'clip': 1.5}, 'agent.clip=1.5 must be above 0 and below 1'),
    ({'gae_lambda': 1.1}, 'agent.gae_lambda=1.1 must be between 0 and 1'),
    ({'value_clip': 0.0}, 'agent.value_clip=0.0 must be a positive number'),
    ({'entropy_cost': -1.0}, 'agent.entropy_cost=-1.0'),
    ({'sigma_max': 1e-4}, 'must be below agent.sigma_max=0.0001'),
    ({'hidden_sizes': ()}, 'agent.hidden_sizes'),
    ({'epochs': 0}, 'agent.epochs=0 must be a whole number'),
  ],
)
def test_a_config_that_cannot_be_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    ppo.Config(**{**OPTIONS, **options})


def test_blocks_that_make_no_rollout_are_refused():
  feed = _agent().feed(K)
  assert feed.num_blocks(UPDATES) == BLOCKS
  with pytest.raises(ValueError, match='rollout_steps=24 is no whole number'):
    _agent().feed(5).num_blocks(UPDATES)
  with pytest.raises(ValueError, match='A call of 5 updates'):
    feed.num_blocks(5)
  with pytest.raises(ValueError, match='over 2 members'):
    feed.num_blocks(UPDATES, members=2)


@pytest.mark.parametrize('preset', presets.AGENT.presets)
def test_the_actor_of_a_preset_makes_whole_rollouts(preset):
  chosen = presets.AGENT.presets[preset]
  spec = environments.spec(chosen['environment'])
  agent = ppo.PPO(ppo.Config(**chosen['agent']), spec)
  num_envs = chosen['actors']['envs_per_actor']
  assert agent.feed(num_envs).num_blocks(agent.updates_per_call) == 1
  assert (
    agent.block_layout(num_envs).num_steps == chosen['actors']['update_period']
  )
  assert (agent.config.entropy_cost > 0) == spec.discrete
