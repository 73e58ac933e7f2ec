"""Evolution strategies on flat vectors: vectors, slow NumPy, and the state."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from murmuration.agents import a2c
from murmuration.agents import d4pg
from murmuration.agents import dqn
from murmuration.agents import evolution
from murmuration.agents import impala
from murmuration.agents import parameters
from murmuration.agents import ppo
from murmuration.agents import strategy as strategy_lib
from murmuration.agents.networks import normalization
from murmuration.environment_loops import environments

CARTPOLE = environments.spec('CartPole-v1')
PENDULUM = environments.spec('Pendulum-v1')


@pytest.mark.vectors('evolution_strategies', kind='gradient')
def test_ranks_and_gradient_are_those_of_the_vectors(vector):
  inputs, tolerance = vector.inputs, vector.tolerance['float64']
  returns = np.stack([inputs['returns_pos'], inputs['returns_neg']], axis=1)
  shaped = evolution.centred_ranks(returns)
  np.testing.assert_allclose(shaped, vector.expected['shaped'], **tolerance)
  scale = inputs['sigma'] if inputs['divide_by_sigma'] else 1.0
  g = evolution.gradient(shaped, np.array(inputs['noise']), scale)
  np.testing.assert_allclose(g, vector.expected['gradient'], **tolerance)


@pytest.mark.vectors('evolution_strategies', kind='noise_table')
def test_the_noise_is_that_of_the_vectors(vector):
  inputs = vector.inputs
  table = evolution.noise_table(inputs['seed'], inputs['size'])
  slices = [table[i : i + inputs['dim']] for i in inputs['indices']]
  np.testing.assert_array_equal(
    slices, np.array(vector.expected['slices'], np.float32)
  )
  config = evolution.Config(
    table_size=inputs['size'], population=1000, pairs_per_task=1000
  )
  drawn = evolution.draws(config, 0, 0, 0, inputs['dim']).indices
  assert (drawn.min(), drawn.max()) == (0, vector.expected['max_index'])


def test_the_table_is_drawn_in_parts_as_at_once_in_little_memory(monkeypatch):
  monkeypatch.setattr(evolution, '_CHUNK', 999)
  tracemalloc.start()
  table = evolution.noise_table(7, 1_000_000)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  expected = np.random.RandomState(7).randn(1_000_000).astype(np.float32)
  np.testing.assert_array_equal(table, expected)
  assert table.nbytes <= peak < 1.1 * table.nbytes


@pytest.mark.parametrize('name', ['table_size', 'table_seed'])
def test_no_table_that_numpy_cannot_draw_from(name):
  with pytest.raises(ValueError, match=f'evolution.{name}=4294967296 must be'):
    evolution.Config(**{name: 2**32})


@pytest.mark.vectors('evolution_strategies', kind='update')
def test_weight_decay_is_taken_from_the_ascent(vector):
  inputs = vector.inputs
  theta = np.array(inputs['theta'])
  direction = evolution.ascent(
    np.array(inputs['gradient']), theta, inputs['l2']
  )
  np.testing.assert_allclose(
    theta + inputs['lr'] * direction,
    vector.expected['theta'],
    **vector.tolerance['float64'],
  )


def _slow_ranks(returns):
  flat = returns.ravel()
  ranks = [np.mean(np.flatnonzero(np.sort(flat) == x)) for x in flat]
  return np.reshape(ranks, returns.shape) / (flat.size - 1) - 0.5


def test_ranks_and_gradient_are_those_of_loops():
  rng = np.random.default_rng(0)
  for pairs in (1, 2, 7, 600):
    returns = rng.integers(0, 5, (pairs, 2)).astype(float)
    shaped = evolution.centred_ranks(returns)
    np.testing.assert_allclose(shaped, _slow_ranks(returns), atol=1e-12)
    noise = rng.standard_normal((pairs, 3))
    expected = np.zeros(3)
    for (plus, minus), e in zip(shaped, noise):
      expected += (plus - minus) * e / (2 * pairs * 0.1)
    g = evolution.gradient(shaped, noise, 0.1)
    np.testing.assert_allclose(g, expected, atol=1e-9)


def test_a_pair_of_equal_returns_moves_nothing():
  shaped = evolution.centred_ranks(np.array([[3.0, 3.0], [1.0, 5.0]]))
  assert shaped[0, 0] == shaped[0, 1]
  noise = [np.array([7.0, 0.0]), np.array([0.0, 1.0])]
  g = evolution.gradient(shaped, noise, 1.0)
  assert g[0] == 0 and g[1] < 0


LAYOUT = parameters.Layout(
  [('policy/w', (20,)), ('value/w', (5,))],
  {'policy': ['policy/w'], 'value': ['value/w']},
)
TABLE = evolution.noise_table(1, 100_000)


def _strategy(layout=LAYOUT, theta=None, **numbers):
  config = evolution.Config(**{'weight_decay': 0.0, **numbers})
  if theta is None:
    theta = np.ones(layout.size)
  return strategy_lib.Strategy(config, layout, theta, TABLE)


def test_the_estimate_points_where_the_function_rises():
  rng = np.random.default_rng(0)
  c, theta, sigma = rng.standard_normal(20), np.zeros(20), 0.05
  indices = rng.integers(0, len(TABLE) - 20, 500)
  noise = np.stack([TABLE[i : i + 20] for i in indices])
  returns = np.stack(
    [
      -np.square(theta + sign * sigma * noise - c).sum(axis=1)
      for sign in (1, -1)
    ],
    axis=1,
  )
  g = evolution.gradient(evolution.centred_ranks(returns), noise, sigma)
  true = 2 * (c - theta)
  cosine = g @ true / np.linalg.norm(g) / np.linalg.norm(true)
  assert cosine > 0.9


def test_only_the_policy_moves():
  strategy = _strategy()
  strategy.update(np.array([3, 50]), np.array([[1.0, 0.0], [4.0, 2.0]]))
  assert (strategy.theta[:20] != 1).all() and (strategy.theta[20:] == 1).all()


@pytest.mark.parametrize('divided', [True, False])
def test_an_update_of_adam_is_kingma_and_ba_s(divided):
  strategy = _strategy(
    learning_rate=0.1, weight_decay=0.01, sigma=0.5, divide_by_sigma=divided
  )
  theta, scale = np.ones(20), 0.5 if divided else 1.0
  m = v = np.zeros(20)
  rng = np.random.default_rng(2)
  for step in (1, 2, 3):
    indices, returns = rng.integers(0, 1000, 4), rng.standard_normal((4, 2))
    found = strategy.update(indices, returns)
    noise = [TABLE[i : i + 20] for i in indices]
    g = evolution.gradient(evolution.centred_ranks(returns), noise, scale)
    down = -(g - 0.01 * theta)
    m, v = 0.9 * m + 0.1 * down, 0.999 * v + 0.001 * down**2
    theta = theta - 0.1 * (m / (1 - 0.9**step)) / (
      np.sqrt(v / (1 - 0.999**step)) + 1e-8
    )
  np.testing.assert_allclose(strategy.theta[:20], theta, rtol=1e-4)
  expected = {
    'gradient_norm': np.linalg.norm(g),
    'theta_norm': np.linalg.norm(theta),
    'flat': 0,
    'dropped_pairs': 0,
    'return_mean': np.mean(returns),
    'return_max': np.max(returns),
    'return_min': np.min(returns),
  }
  assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize('skip, moves', [(True, False), (False, True)])
def test_equal_returns_leave_theta_or_let_it_decay(skip, moves):
  strategy = _strategy(
    skip_flat=skip, weight_decay=0.1, optimizer='sgd', learning_rate=0.5
  )
  found = strategy.update(np.array([3, 50]), np.full((2, 2), 500.0))
  assert found['flat'] == 1 and strategy.generation == 1
  expected = 1 - 0.5 * 0.1 if moves else 1.0
  np.testing.assert_allclose(strategy.theta[:20], expected, rtol=1e-6)


def test_a_pair_whose_return_is_not_a_number_is_left_out():
  one, two = _strategy(), _strategy()
  good = np.array([[1.0, 0.0], [4.0, 2.0]])
  one.update(np.array([3, 50]), good)
  bad = np.concatenate([good, [[np.nan, 5.0]]])
  found = two.update(np.array([3, 50, 9]), bad)
  assert found['dropped_pairs'] == 1
  np.testing.assert_array_equal(one.theta, two.theta)
  before = two.theta
  assert two.update(np.array([3]), np.array([[np.nan, 1.0]]))['flat'] == 1
  np.testing.assert_array_equal(two.theta, before)


def test_a_strategy_goes_on_from_what_it_saved():
  rng = np.random.default_rng(0)

  def step(strategy, returns):
    size = evolution.observation_size(strategy._layout)
    sums = evolution.Sums(3.0, np.full(size, 6.0), np.full(size, 15.0))
    strategy.update(np.array([5, 80]), returns, sums)

  for layout in (LAYOUT, _ppo(normalize_observations=True).layout):
    first = _strategy(layout)
    for _ in range(2):
      step(first, rng.standard_normal((2, 2)))
    second = _strategy(layout, np.zeros(layout.size))
    second.restore(first.save())
    returns = rng.standard_normal((2, 2))
    for strategy in (first, second):
      step(strategy, returns)
    np.testing.assert_array_equal(first.theta, second.theta)
    assert second.generation == 3


def test_a_checkpoint_of_another_network_is_refused():
  saved = _strategy().save()
  other = parameters.Layout([('policy/w', (3,))], {'policy': ['policy/w']})
  with pytest.raises(ValueError, match='another network'):
    _strategy(other).restore(saved)
  del saved['numbers']
  with pytest.raises(ValueError, match='numbers of shape None'):
    _strategy().restore(saved)


def _ppo(**numbers):
  return ppo.PPO(ppo.Config(hidden_sizes=(8,), **numbers), CARTPOLE)


def test_what_is_perturbed_is_the_policy_or_the_whole_network_that_acts():
  agent = _ppo(normalize_observations=True)
  assert evolution.perturbed(agent.layout) == agent.layout.groups['policy']
  q = dqn.DQN(dqn.Config(hidden_sizes=(8,)), CARTPOLE).layout
  assert evolution.perturbed(q) == slice(0, q.size)
  shared = impala.IMPALA(
    impala.Config(hidden_sizes=(8,), normalize_observations=True), CARTPOLE
  ).layout
  assert evolution.perturbed(shared) == shared.groups['heads']
  broken = parameters.Layout(
    [('a', (1,)), ('normalizer/mean', (1,)), ('b', (1,))],
    {'normalizer': ['normalizer/mean']},
  )
  with pytest.raises(ValueError, match='not in one piece'):
    evolution.perturbed(broken)


def test_statistics_reach_the_agent_s_normalizer():
  agent = d4pg.D4PG(
    d4pg.Config(policy_sizes=(8,), normalize_observations=True), PENDULUM
  )
  strategy = _strategy(agent.layout, agent.initial(0))

  def named():
    names = [v.name for v in agent.layout.variables]
    return dict(zip(names, agent.layout.unpack(strategy.theta)))

  rng = np.random.default_rng(0)
  seen = rng.normal([1.0, -2.0, 0.0], [3.0, 1.0, 0.0], (5000, 3))
  sums = evolution.Sums(5000, seen.sum(axis=0), np.square(seen).sum(axis=0))
  strategy.update(np.array([5]), np.array([[0.0, 0.0]]), sums)
  by_name = named()
  np.testing.assert_allclose(
    by_name['normalizer/mean'], seen.mean(axis=0), atol=1e-3
  )
  # The floor of a standard deviation is 0.1.
  variance = np.maximum(seen.var(axis=0), 0.01)
  np.testing.assert_allclose(
    by_name['normalizer/variance'], variance, rtol=1e-2
  )
  assert by_name['normalizer/memory'] == pytest.approx(0.005, rel=1e-3)
  # The normalizer cannot have seen more than it remembers.
  many = evolution.Sums(2.0 * normalization.CAPACITY, *sums[1:])
  strategy.update(np.array([5]), np.array([[0.0, 0.0]]), many)
  assert named()['normalizer/memory'] == 1


def test_what_is_drawn_for_a_task_depends_on_its_numbers_alone():
  config = evolution.Config(population=5, pairs_per_task=2, table_size=1000)
  assert [config.pairs(task) for task in range(config.tasks)] == [2, 2, 1]
  one, same, other = (evolution.draws(config, 0, 3, t, 10) for t in (1, 1, 2))
  np.testing.assert_array_equal(one.indices, same.indices)
  assert one.seeds == same.seeds and one.rng.random() == same.rng.random()
  assert one.seeds[:2] != other.seeds
  assert len(set(one.seeds)) == 4
  common = dataclasses.replace(config, common_episode_seed=True)
  seeds = evolution.draws(common, 0, 3, 1, 10).seeds
  assert seeds[::2] == seeds[1::2] and seeds[0] != seeds[2]
  # Of 8,000 episodes a quarter count, to within five standard errors.
  many = dataclasses.replace(config, population=4000, pairs_per_task=4000)
  share = evolution.draws(many, 0, 3, 0, 10).observed.mean()
  assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 8000)


AGENTS = {
  'dqn': lambda: dqn.DQN(dqn.Config(hidden_sizes=(8,)), CARTPOLE),
  'dueling': lambda: dqn.DQN(
    dqn.Config(hidden_sizes=(8, 8), dueling=True), CARTPOLE
  ),
  'ppo': lambda: _ppo(normalize_observations=True),
  'ppo, stack': lambda: _ppo(stack=3, unroll_length=64),
  'ppo, lstm': lambda: _ppo(lstm_size=4, shared_torso=True, unroll_length=64),
  'a2c, continuous': lambda: a2c.A2C(a2c.Config(hidden_sizes=(8,)), PENDULUM),
  'd4pg': lambda: d4pg.D4PG(
    d4pg.Config(policy_sizes=(8,), normalize_observations=True), PENDULUM
  ),
}


@pytest.mark.parametrize('name', AGENTS)
def test_policies_side_by_side_act_as_each_does_alone(name):
  agent, rng = AGENTS[name](), np.random.default_rng(0)
  size = agent.layout.size
  theta = [agent.initial(i) + 0.1 * rng.random(size) for i in range(4)]
  theta = np.array(theta, np.float32)
  together = agent.greedy_each(theta[:3])
  alone = [agent.greedy(one) for one in theta[:3]]
  shape = agent.spec.observation_shape
  for step in range(6):
    if step == 3:  # one begins an episode with other parameters
      together.begin(1, theta[3])
      alone[1] = agent.greedy(theta[3])
    if step == 4:  # another has no more episodes to play
      together.keep(np.array([1, 2]))
      alone = alone[1:]
    observation = rng.standard_normal((len(alone), *shape))
    observation = observation.astype(np.float32)
    expected = [p(o[None])[0] for p, o in zip(alone, observation)]
    np.testing.assert_allclose(together(observation), expected, atol=1e-6)


def test_perturbed_policies_are_theta_plus_and_minus_noise():
  agent = d4pg.D4PG(d4pg.Config(policy_sizes=(8,)), PENDULUM)
  config = evolution.Config(
    sigma=0.3, action_noise=0.0, population=2, pairs_per_task=2,
    table_size=len(TABLE),
  )  # fmt: skip
  theta = agent.initial(0)
  place = evolution.perturbed(agent.layout)
  dim = place.stop - place.start
  drawn = evolution.draws(config, 0, 0, 0, dim)
  policy = evolution.Perturbed(config, agent, TABLE, theta, drawn, 2)
  policy.begin(0, 2), policy.begin(1, 3)
  observation = np.ones((2, 3), np.float32)
  for sign, action in zip((1, -1), policy(observation)):
    moved = theta.copy()
    index = drawn.indices[1]
    moved[place] += np.float32(sign * 0.3) * TABLE[index : index + dim]
    expected = agent.greedy(moved)(observation[:1])[0]
    np.testing.assert_allclose(action, expected, atol=1e-6)


def test_who_has_ended_is_left_out_and_the_others_act_and_are_counted():
  agent = d4pg.D4PG(
    d4pg.Config(policy_sizes=(8,), normalize_observations=True), PENDULUM
  )
  config = evolution.Config(
    sigma=0.3, action_noise=0.0, population=4, pairs_per_task=4,
    table_size=len(TABLE),
  )  # fmt: skip
  theta, place = agent.initial(0), evolution.perturbed(agent.layout)
  dim = place.stop - place.start
  observed = np.array([True, False] * 4)
  drawn = evolution.draws(config, 0, 0, 0, dim)._replace(observed=observed)
  policy = evolution.Perturbed(config, agent, TABLE, theta, drawn, 4)
  playing, seen, rng = {}, [], np.random.default_rng(0)

  def begin(member, episode):
    policy.begin(member, episode)
    playing[member] = episode

  def end(member):
    policy.end(member)
    del playing[member]

  for member in range(4):
    begin(member, member)
  changes = [
    lambda: end(1),
    lambda: end(0),
    lambda: begin(3, 7),
    lambda: begin(2, 6),
    lambda: None,
  ]
  for change in changes:
    observation = rng.standard_normal((4, 3)).astype(np.float32)
    actions = policy(observation)
    for member, episode in playing.items():
      moved, index = theta.copy(), drawn.indices[episode // 2]
      noise = TABLE[index : index + dim]
      moved[place] += np.float32(-0.3 if episode % 2 else 0.3) * noise
      expected = agent.greedy(moved)(observation[member : member + 1])[0]
      np.testing.assert_allclose(actions[member], expected, atol=1e-6)
      if observed[episode]:
        seen.append(observation[member])
    change()
  sums = policy.sums
  assert sums.number == len(seen)
  np.testing.assert_allclose(sums.first, np.sum(seen, axis=0), rtol=1e-5)
  np.testing.assert_allclose(
    sums.second, np.sum(np.square(seen), axis=0), rtol=1e-5
  )


def test_continuous_actions_have_noise():
  agent = d4pg.D4PG(d4pg.Config(policy_sizes=(8,)), PENDULUM)
  theta = agent.initial(0)
  observation = np.ones((2, 3), np.float32)

  def played(action_noise):
    """Actions of a pair of episodes, and the generator of their noise."""
    config = evolution.Config(
      action_noise=action_noise, population=1, pairs_per_task=1,
      table_size=len(TABLE),
    )  # fmt: skip
    drawn = evolution.draws(config, 0, 0, 0, agent.layout.size)
    policy = evolution.Perturbed(config, agent, TABLE, theta, drawn, 2)
    policy.begin(0, 0), policy.begin(1, 1)
    return policy(observation), drawn.rng

  still, rng = played(0.0)
  noisy, _ = played(0.5)
  noise = 0.5 * rng.standard_normal((2, 1))
  np.testing.assert_allclose(noisy, still + noise, atol=1e-6)
