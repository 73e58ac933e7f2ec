"""DDPG and what it shares with D4PG: its loss by sums, and how it acts."""

import numpy as np
import pytest
import tensorflow as tf

from agents import base
from agents import ddpg
from agents import feeds
from agents import learner as learner_lib
from agents.exchange import local as local_exchange
from agents.exchange import pull as pull_exchange
from environment_loops import environments
from replay import packing

GAMMA = 0.9
SPEC = environments.Spec('Test-v0', (2, 2), None, (3,), (-2.0,) * 3, (2.0,) * 3)
LAYOUT = packing.TransitionLayout((2, 2), (3,), discrete=False)
TD3 = {'twin_critics': True, 'policy_delay': 2, 'smoothing_sigma': 0.2}


def _agent(**options):
  sizes = {'policy_sizes': (5,), 'critic_sizes': (6,), 'activation': 'tanh'}
  return ddpg.DDPG(ddpg.Config(**{**sizes, 'gamma': GAMMA, **options}), SPEC)


def _theta(agent, seed):
  """Parameters whose policy is not yet near zero, and some statistics."""
  theta = agent.initial(seed)
  theta[agent.layout.groups['policy']] *= 3.0
  if 'normalizer' in agent.layout.groups:
    rng = np.random.default_rng(seed)
    theta[agent.layout.groups['normalizer']] = np.concatenate(
      [[0.3], rng.normal(size=4), rng.uniform(0.5, 2.0, size=4)]
    )
  return theta


def _transitions(size=5, seed=0):
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


def _tensors(transition):
  return packing.Transition(*map(tf.constant, transition))


def _variables(agent, theta):
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

  def mu(self, observation):
    return np.tanh(self._mlp('policy', self.see(observation)))

  def q(self, observation, action, critic=0):
    x = np.concatenate([self.see(observation), action])
    return self._mlp(f'critic_{critic}', x)[0]


def slow_loss(agent, theta, theta_hat, transition, importance=None):
  """Critics' loss and mean Q of the policy, one transition at a time."""
  config = agent.config
  online = Slow(agent, theta)
  target = Slow(agent, theta_hat, scale_of=online)
  critics = (0, 1) if config.twin_critics else (0,)
  losses, values, errors = [], [], []
  for i, (o_tm1, a_tm1, r_t, d_t, o_t, w) in enumerate(zip(*transition[:6])):
    if not w:
      continue
    bootstrap = min(target.q(o_t, target.mu(o_t), k) for k in critics)
    y = config.reward_scale * r_t + config.gamma * d_t * bootstrap
    found = [y - online.q(o_tm1, a_tm1, k) for k in critics]
    factor = 1.0 if importance is None else importance[i]
    losses.append(factor * sum(e**2 / 2 for e in found))
    errors.append(np.mean(np.abs(found)))
    values.append(online.q(o_tm1, online.mu(o_tm1)))
  return np.mean(losses), np.mean(values), errors


OPTIONS = [
  {},
  {'reward_scale': 0.25},
  {'twin_critics': True},
  {'normalize_observations': True},
  {'twin_critics': True, 'normalize_observations': True, 'prioritized': True},
]


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_the_critics_loss_is_the_sum_of_the_spec(options):
  agent = _agent(**options)
  theta, theta_hat = _theta(agent, 0), _theta(agent, 1)
  transition = _transitions()
  importance = None
  if agent.config.prioritized:
    importance = np.array([1.0, 0.5, 0.25, 0.7, 0.9], np.float32)
  got = agent.loss(
    _variables(agent, theta),
    _variables(agent, theta_hat),
    _tensors(transition),
    importance,
  )
  # The metric is what the items say; importance corrects only the gradient.
  loss, value, errors = slow_loss(agent, theta, theta_hat, transition)
  np.testing.assert_allclose(got.metrics['loss'], loss, rtol=1e-4)
  np.testing.assert_allclose(got.metrics['policy_loss'], -value, rtol=1e-4)
  np.testing.assert_allclose(got.priorities[:4], errors, rtol=1e-4)
  np.testing.assert_allclose(
    got.metrics['td_error'], np.mean(errors), rtol=1e-4
  )
  assert set(got.metrics) == set(agent.metrics)


def _gradient(agent, theta, theta_hat, transition, importance=None):
  variables = _variables(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    loss = agent.loss(
      variables, _variables(agent, theta_hat), _tensors(transition), importance
    ).loss
  found = tape.gradient(
    loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return agent.layout.pack([g.numpy() for g in found])


def _difference(function, theta, place, step=1e-5):
  """Central differences of `function(theta)` in a slice of theta."""
  found = []
  for i in range(place.start, place.stop):
    ends = []
    for sign in (1, -1):
      moved = theta.astype(float).copy()
      moved[i] += sign * step
      ends.append(function(moved))
    found.append((ends[0] - ends[1]) / (2 * step))
  return np.array(found)


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_each_group_gets_the_gradient_of_its_own_loss_only(options):
  agent = _agent(**options)
  theta, theta_hat = _theta(agent, 0), _theta(agent, 1)
  transition = _transitions()
  importance = None
  if agent.config.prioritized:
    importance = np.array([1.0, 0.5, 0.25, 0.7, 0.9], np.float32)
  got = _gradient(agent, theta, theta_hat, transition, importance)
  groups = agent.layout.groups

  def critic_loss(moved):
    return slow_loss(agent, moved, theta_hat, transition, importance)[0]

  def policy_loss(moved):
    return -slow_loss(agent, moved, theta_hat, transition)[1]

  for group, loss in (('critic', critic_loss), ('policy', policy_loss)):
    place = groups[group]
    expected = _difference(loss, theta, place)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(got[place], expected, rtol=1e-3, atol=1e-4)
  # Statistics are no weights.
  assert not got[groups['critic'].stop :].any()


def test_the_gradient_of_q_is_shortened_for_each_sample():
  transition = _transitions()
  agent, clipped = _agent(), _agent(max_dq_da=1e-3)
  theta = _theta(agent, 0)
  place = agent.layout.groups['policy']
  free, short = (
    _gradient(a, theta, theta, transition)[place] for a in (agent, clipped)
  )
  assert 0 < np.linalg.norm(short) < 0.1 * np.linalg.norm(free)
  wide = _agent(max_dq_da=1e6)
  np.testing.assert_allclose(
    _gradient(wide, theta, theta, transition)[place], free, rtol=1e-6
  )


def test_nothing_is_learned_through_the_target_networks():
  agent = _agent(twin_critics=True)
  theta = _variables(agent, _theta(agent, 0))
  theta_hat = _variables(agent, _theta(agent, 1))
  with tf.GradientTape() as tape:
    tape.watch([theta, theta_hat])
    loss = agent.loss(theta, theta_hat, _tensors(_transitions())).loss
  own, target = tape.gradient(loss, [theta, theta_hat])
  assert all(g is not None for g in own)
  assert target == [None] * len(theta_hat)


def test_a_termination_hides_what_comes_after_and_a_time_limit_does_not():
  agent = _agent()
  variables = _variables(agent, _theta(agent, 0))
  transition = _transitions()
  elsewhere = transition._replace(o_t=transition.o_t + 1)
  one, two = (
    agent.loss(variables, variables, _tensors(t)).priorities
    for t in (transition, elsewhere)
  )
  same = np.isclose(one, two)
  np.testing.assert_array_equal(same[:4], [False, False, True, False])


def test_smoothing_moves_targets_and_only_with_a_sigma():
  transition = _transitions()
  found = []
  for sigma in (0.0, 0.3):
    agent = _agent(smoothing_sigma=sigma)
    variables = _variables(agent, _theta(agent, 0))
    found += [
      agent.loss(variables, variables, _tensors(transition)).priorities
      for _ in range(2)
    ]
  plain, plain_again, noisy, noisy_again = map(np.array, found)
  np.testing.assert_array_equal(plain, plain_again)
  np.testing.assert_array_equal(noisy, noisy_again)
  np.testing.assert_array_equal(
    np.isclose(plain, noisy)[:4], [False, False, True, False]
  )


def _learner(agent, members=1, rate=1e-3):
  theta = np.stack([_theta(agent, seed) for seed in range(members)])
  return learner_lib.TFLearner(
    agent,
    theta,
    [rate] * members,
    local_exchange.Local(),
    feeds.Transitions(LAYOUT, agent.batch_size),
  )


def _packed(agent):
  return tf.constant(LAYOUT.pack(*_transitions(agent.batch_size)[:6]))


@pytest.mark.parametrize(
  'options',
  [{}, {**TD3, 'normalize_observations': True, 'max_dq_da': 1.0}],
  ids=str,
)
def test_a_population_learns_what_its_members_would_learn_alone(options):
  agent = _agent(batch_size=5, **options)
  learner = _learner(agent, members=3)
  packed = np.stack([LAYOUT.pack(*_transitions(5, p)[:6]) for p in range(3)])
  got = learner.gradient(tf.constant(packed))
  for p, theta in enumerate(learner.parameters()):
    transition = _transitions(5, p)
    np.testing.assert_allclose(
      got.vector[p],
      _gradient(agent, theta, theta, transition),
      rtol=1e-3,
      atol=1e-5,
    )
    variables = _variables(agent, theta)
    alone = agent.loss(variables, variables, _tensors(transition))
    for name, value in {**alone.metrics, **alone.statistics}.items():
      rows = {**got.metrics, **got.statistics}[name]
      np.testing.assert_allclose(rows[p], value, rtol=1e-4, atol=1e-6)
  assert bool(got.statistics) == agent.config.normalize_observations


def test_policy_and_critic_learn_at_rates_of_their_own():
  # A step of SGD is the gradient times the rate.
  agent = _agent(
    optimizer='sgd',
    policy_learning_rate=0.02,
    critic_learning_rate=0.1,
    batch_size=5,
  )
  learner = _learner(agent, rate=agent.learning_rate)
  before = learner.parameters()[0]
  learner.step(_packed(agent))
  step = learner.parameters()[0] - before
  gradient = _gradient(agent, before, before, _transitions())
  for group, expected in (('policy', 0.02), ('critic', 0.1)):
    place = agent.layout.groups[group]
    np.testing.assert_allclose(
      step[place], -expected * gradient[place], rtol=1e-3, atol=1e-6
    )


def test_a_learner_that_gives_up_names_settings_that_there_are():
  agent = _agent(batch_size=5)
  learner = _learner(agent)
  for setting in agent.rate_settings:
    section, name = setting.split('.')
    assert section == 'agent' and hasattr(agent.config, name)
  packed = tf.fill(_packed(agent).shape, float('nan'))
  with pytest.raises(
    learner_lib.LearnerFault,
    match='agent.policy_learning_rate and agent.critic_learning_rate, or',
  ):
    for _ in range(learner_lib.MAX_SKIPPED_IN_A_ROW):
      learner.step(packed)


def test_the_rate_is_the_critics_and_the_policys_keeps_its_ratio_to_it():
  agent = _agent(policy_learning_rate=1e-4, critic_learning_rate=1e-3)
  assert agent.learning_rate == 1e-3
  scale = agent.learning_rate_scale
  np.testing.assert_allclose(scale[agent.layout.groups['policy']], 0.1)
  np.testing.assert_allclose(scale[agent.layout.groups['critic']], 1.0)


def test_the_policy_moves_at_every_second_update_only():
  agent = _agent(policy_delay=2, batch_size=5)
  learner = _learner(agent)
  moved = []
  for _ in range(4):
    before = learner.parameters()[0]
    learner.step(_packed(agent))
    step = learner.parameters()[0] != before
    groups = agent.layout.groups
    moved.append((step[groups['policy']].any(), step[groups['critic']].any()))
  assert moved == [(False, True), (True, True)] * 2


def test_a_policy_that_moves_less_often_has_an_adam_of_its_own():
  agent = _agent(policy_delay=2, batch_size=5)
  learner = _learner(agent, rate=1e-3)
  groups, t = agent.layout.groups, {'policy': 0, 'critic': 0}
  m, v = np.zeros(agent.layout.size), np.zeros(agent.layout.size)
  for update in range(6):
    before, target = learner.save()['theta'][0], learner.save()['target'][0]
    learner.step(_packed(agent))
    step = learner.parameters()[0] - before
    g = _gradient(agent, before, target, _transitions())
    for group, rate in (('policy', 1e-4), ('critic', 1e-3)):
      place = groups[group]
      if group == 'policy' and update % 2 == 0:
        assert not step[place].any()
        continue
      # Kingma and Ba 2015, Algorithm 1, for each group alone.
      t[group] += 1
      m[place] += (1 - 0.9) * (g[place] - m[place])
      v[place] += (1 - 0.999) * (g[place] ** 2 - v[place])
      m_hat = m[place] / (1 - 0.9 ** t[group])
      v_hat = v[place] / (1 - 0.999 ** t[group])
      expected = -rate * m_hat / (np.sqrt(v_hat) + 1e-8)
      assert np.abs(expected).max() > 0.5 * rate
      np.testing.assert_allclose(step[place], expected, rtol=0.02, atol=1e-6)
  np.testing.assert_array_equal(learner.save()['steps'], [[6, 3]])


def test_statistics_reach_theta_and_the_policy_that_acts_uses_them():
  agent = _agent(normalize_observations=True, prioritized=True, batch_size=5)
  learner = _learner(agent)
  theta = agent.initial(0)
  learner.set_member(0, theta)
  result = learner.step(_packed(agent), tf.fill([5], 0.2))
  names = [v.name for v in agent.layout.variables]
  after = dict(zip(names, agent.layout.unpack(learner.parameters()[0])))
  seen = _transitions().o_tm1[:4].reshape(4, 4)
  np.testing.assert_allclose(
    after['normalizer/mean'], seen.mean(axis=0), rtol=1e-4, atol=1e-5
  )
  np.testing.assert_allclose(
    after['normalizer/variance'], seen.var(axis=0), rtol=1e-4
  )
  # The place without a transition has the largest error, and does not count.
  assert result.priorities[4] > result.priorities[:4].max() > 1
  np.testing.assert_allclose(
    after['priority/maximum'], [result.priorities[:4].max()], rtol=1e-6
  )
  acting = learner.parameters()[0]
  np.testing.assert_allclose(
    agent.greedy(acting)(_transitions().o_tm1),
    [Slow(agent, acting).mu(o) for o in _transitions().o_tm1],
    rtol=1e-4,
    atol=1e-6,
  )


def _pulled(agent, star, c):
  """What one update makes of theta, with theta_star = theta + star."""
  exchange = pull_exchange.Pull(c_max=None)
  learner = learner_lib.TFLearner(
    agent,
    _theta(agent, 0)[None],
    [1e-3],
    exchange,
    feeds.Transitions(LAYOUT, agent.batch_size),
    seed=5,
  )
  exchange.set_star(_theta(agent, 0) + star, c)
  learner.step(_packed(agent))
  return learner.parameters()[0]


def test_theta_star_pulls_policy_and_critic_but_no_statistics():
  agent = _agent(batch_size=5, policy_delay=2, normalize_observations=True)
  groups = agent.layout.groups
  alone = _pulled(agent, star=1.0, c=0.0)
  moved = _pulled(agent, star=1.0, c=0.5) - alone
  # A draw r for each network, which goes the same part of the way whole; the
  # policy also in an update that its own gradient sits out.
  draws = [moved[groups[group]].mean() for group in ('policy', 'critic')]
  assert 0 < min(draws) < max(draws) < 0.5
  for group, r in zip(('policy', 'critic'), draws):
    np.testing.assert_allclose(moved[groups[group]], r, rtol=1e-3)
  np.testing.assert_array_equal(moved[groups['normalizer']], 0.0)


def test_new_items_get_the_largest_priority_of_the_learner_so_far():
  agent = _agent(prioritized=True)
  theta = agent.initial(0)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 2)
  packed = np.zeros((3, LAYOUT.width), np.float32)
  np.testing.assert_array_equal(actor.priorities(theta, packed), [1.0] * 3)
  theta[agent.layout.groups['priority']] = 7.5
  np.testing.assert_array_equal(actor.priorities(theta, packed), [7.5] * 3)
  uniform = _agent().actor(base.ActorInfo(0, 1, 0), 2)
  assert uniform.priorities(_agent().initial(0), packed) is None


def test_replay_is_prioritized_only_where_the_config_says_so():
  assert _agent().priority_exponent is None
  assert (
    _agent(prioritized=True, priority_exponent=0.5).priority_exponent == 0.5
  )


def _observations(members, number):
  rng = np.random.default_rng(5)
  return rng.normal(size=(members, number, 2, 2)).astype(np.float32)


def test_without_noise_each_member_takes_its_own_action():
  agent = _agent(sigma=0.0, normalize_observations=True)
  theta = np.stack([_theta(agent, 0), _theta(agent, 1)])
  observation = _observations(2, 7)
  expected = [
    [Slow(agent, theta[p]).mu(o) for o in observation[p]] for p in range(2)
  ]
  actions = agent.act(theta, observation, 0, np.random.default_rng(0))
  assert actions.shape == (2, 7, 3)
  assert actions.dtype == np.float32
  np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-6)
  for p in range(2):
    np.testing.assert_allclose(
      agent.greedy(theta[p])(observation[p]), expected[p], rtol=1e-4, atol=1e-6
    )


def test_an_actor_does_what_the_agent_does_for_one_member():
  agent = _agent(random_steps=10)
  theta, observation = _theta(agent, 0), _observations(1, 6)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 6)
  for steps in (0, 10):
    np.testing.assert_array_equal(
      actor.act(theta, observation[0], steps, np.random.default_rng(1)),
      agent.act(theta[None], observation, steps, np.random.default_rng(1))[0],
    )


def test_each_actor_has_a_noise_of_its_own_that_ends_with_an_episode():
  agent = _agent(noise='ornstein_uhlenbeck', sigma=0.05)
  theta, observation = agent.initial(0), _observations(1, 2)[0]
  means = agent.greedy(theta)(observation)
  one, two = (agent.actor(base.ActorInfo(i, 2, 0), 2) for i in range(2))

  def noise_of(actor, seed):
    rng = np.random.default_rng(seed)
    return actor.act(theta, observation, 0, rng) - means

  first = noise_of(one, 0)
  np.testing.assert_allclose(noise_of(two, 0), first, atol=1e-6)
  one.ended(np.array([True, False]))
  fresh = noise_of(agent.actor(base.ActorInfo(0, 2, 0), 2), 1)
  second = noise_of(one, 1)
  np.testing.assert_allclose(second[0], fresh[0], atol=1e-6)
  np.testing.assert_allclose(second[1], fresh[1] + 0.85 * first[1], atol=1e-6)


def test_the_noise_of_a_population_ends_with_each_members_episode():
  agent = _agent(noise='ornstein_uhlenbeck', sigma=0.05)
  theta = np.stack([agent.initial(seed) for seed in range(2)])
  observation = _observations(2, 1)
  still = _agent(sigma=0.0).act(theta, observation, 0, np.random.default_rng(0))

  def noise_of(agent, seed):
    rng = np.random.default_rng(seed)
    return agent.act(theta, observation, 0, rng) - still

  first = noise_of(agent, 0)
  agent.ended(np.array([[True], [False]]))
  fresh = noise_of(_agent(noise='ornstein_uhlenbeck', sigma=0.05), 1)
  second = noise_of(agent, 1)
  np.testing.assert_allclose(second[0], fresh[0], atol=1e-6)
  np.testing.assert_allclose(second[1], fresh[1] + 0.85 * first[1], atol=1e-6)


def test_exploration_is_sigma_after_the_random_steps():
  agent = _agent(sigma=0.3, random_steps=100)
  assert agent.exploration(99) == 1.0
  assert agent.exploration(100) == 0.3


def test_a_greedy_policy_keeps_the_parameters_it_was_made_with():
  agent = _agent()
  theta, observation = _theta(agent, 0), _observations(1, 4)[0]
  policy = agent.greedy(theta)
  before = policy(observation)
  theta *= -1.0  # the learner goes on
  np.testing.assert_array_equal(policy(observation), before)


def test_the_first_actions_are_near_the_middle_and_seeds_are_kept():
  agent = _agent()
  theta = agent.initial(7)
  assert theta.dtype == np.float32
  np.testing.assert_array_equal(theta, _agent().initial(7))
  assert not np.array_equal(theta, agent.initial(8))
  assert np.abs(agent.greedy(theta)(_observations(1, 50)[0])).max() < 0.1


def test_a_saturated_policy_is_remarked_upon():
  agent = _agent()
  fine = dict.fromkeys(agent.metrics, 0.0)
  assert agent.remarks(fine) == []
  (remark,) = agent.remarks({**fine, 'policy_saturation': 0.95})
  assert '95%' in remark and 'agent.max_dq_da' in remark


@pytest.mark.parametrize(
  ('spec', 'message'),
  [
    (
      environments.Spec('Buttons-v0', (3,), num_actions=4),
      'Buttons-v0 takes 4 discrete actions, but DDPG needs continuous',
    ),
    (
      environments.Spec('Free-v0', (3,), None, (1,), (-np.inf,), (np.inf,)),
      r'Free-v0 takes unbounded actions .*\.TransformAction\(env, ',
    ),
  ],
)
def test_actions_it_cannot_take_are_refused(spec, message):
  with pytest.raises(environments.EnvironmentRefused, match=message):
    ddpg.DDPG(ddpg.Config(), spec)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'policy_learning_rate': 0.0}, '--config.agent.policy_learning_rate'),
    ({'critic_learning_rate': -1.0}, '--config.agent.critic_learning_rate'),
    ({'n_step': 0}, '--config.agent.n_step'),
    ({'policy_delay': 0}, '--config.agent.policy_delay'),
    ({'reward_scale': 0.0}, '--config.agent.reward_scale'),
    ({'reward_scale': float('inf')}, '--config.agent.reward_scale'),
    ({'max_dq_da': 0.0}, '--config.agent.max_dq_da'),
    ({'max_gradient_norm': -1.0}, '--config.agent.max_gradient_norm'),
    ({'gamma': 1.1}, 'agent.gamma=1.1 must be between 0 and 1'),
    ({'priority_exponent': 2.0}, 'agent.priority_exponent=2.0 must be between'),
    ({'target_update_tau': 0.0}, 'target_update_tau=0.0 must be above 0 and'),
    ({'sigma': -0.1}, 'agent.sigma=-0.1 must be'),
    ({'sigma': float('nan')}, 'agent.sigma=nan must be'),
    ({'random_steps': -1}, 'agent.random_steps=-1 must be'),
    ({'policy_sizes': ()}, r'agent.policy_sizes=\(\) must be'),
    ({'critic_sizes': (64, 0)}, r'agent.critic_sizes=\(64, 0\) must be'),
    ({'noise': 'pink'}, "agent.noise='pink' is not known"),
    ({'optimizer': 'lion'}, "optimizer='lion' is not known"),
    ({'activation': 'gelu'}, "activation='gelu' is not known"),
    ({'min_replay_size': 9, 'max_replay_size': 8}, 'could never start'),
    ({'anneal_updates': 5, 'anneal_after': 5}, 'below agent.anneal_updates=5'),
    ({'anneal_updates': 0}, '--config.agent.anneal_updates'),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    ddpg.DDPG(ddpg.Config(**options), SPEC)


def test_the_rates_stay_and_then_fall_to_zero():
  agent = ddpg.DDPG(ddpg.Config(anneal_after=4, anneal_updates=8), SPEC)
  factors = [float(agent.rate_factor(tf.constant(n))) for n in (0, 4, 6, 9)]
  assert factors == [1.0, 1.0, 0.5, 0.0]
  assert agent.rate_end == (8, 'agent.anneal_updates', 8)
  plain = ddpg.DDPG(ddpg.Config(), SPEC)
  assert plain.rate_factor(tf.constant(9)) is plain.rate_end is None
