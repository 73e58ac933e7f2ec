"""SAC: each equation as a slow sum, the gradient of each part, how it acts.

Critics are those of DDPG, test_ddpg.py; statistics and priorities too,
test_ddpg_learner.py.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.agents import batched_acting
from murmuration.agents import feeds
from murmuration.agents import learner as learner_lib
from murmuration.agents import sac
from murmuration.agents.exchange import local as local_exchange
from murmuration.agents.losses import policy as policy_losses
from murmuration.agents.losses import soft
from murmuration.environment_loops import environments
from murmuration.replay import packing

GAMMA = 0.9
A = 2
SPEC = environments.Spec('Test-v0', (4,), None, (A,), (-2.0,) * A, (2.0,) * A)
LAYOUT = packing.TransitionLayout((4,), (A,), discrete=False)
OPTIONS = [
  {},
  {
    'reward_scale': 0.25,
    'target_entropy': 0.7,
    'normalize_observations': True,
  },
]


def _agent(**options):
  sizes = {'policy_sizes': (5,), 'critic_sizes': (6,), 'activation': 'tanh'}
  config = {**sizes, 'gamma': GAMMA, 'random_steps': 0, 'batch_size': 5}
  return sac.SAC(sac.Config(**{**config, **options}), SPEC)


def _theta(agent, seed):
  """A policy that is not near zero, log sigmas on both sides of the ceiling."""
  theta = agent.initial(seed)
  theta[agent.layout.groups['policy']] *= 3.0
  names = [v.name for v in agent.layout.variables]
  bias = agent.layout.variables[names.index('policy/linear_1/b')].slice
  theta[bias] = [0.3, -0.2, -1.0, 2.5]
  theta[agent.layout.groups['temperature']] = math.log(0.4)
  if 'normalizer' in agent.layout.groups:
    rng = np.random.default_rng(seed)
    theta[agent.layout.groups['normalizer']] = np.concatenate(
      [[0.3], rng.normal(size=4), rng.uniform(0.5, 2.0, size=4)]
    )
  return theta


def _transitions(seed=0):
  """A full window, cuts by time limits, a termination, and no transition."""
  rng = np.random.default_rng(seed)
  return packing.Transition(
    o_tm1=rng.normal(size=(5, 4)).astype(np.float32),
    a_tm1=rng.uniform(-1, 1, size=(5, A)).astype(np.float32),
    r_t=np.array([4.0, -0.5, 0.3, 0.1, 50.0], np.float32),
    d_t=np.array([GAMMA**2, 1.0, 0.0, GAMMA, GAMMA**2], np.float32),
    o_t=rng.normal(size=(5, 4)).astype(np.float32),
    weight=np.array([1, 1, 1, 1, 0], np.float32),
  )


def _tensors(transition):
  return packing.Transition(*map(tf.constant, transition))


def _variables(agent, theta):
  return [tf.constant(v) for v in agent.layout.unpack(theta)]


def _draws(*seeds):
  """What the loss draws for these, [5, A], in float64.

  NumPy 2 has products of float32 and a number of Python in float32.
  """
  drawn = policy_losses.noise_like(tf.zeros((5, A)), *seeds)
  return drawn.numpy().astype(float)


class Slow:
  """The networks and the policy's distribution, in float64."""

  def __init__(self, agent, theta, scale_of=None):
    variables = agent.layout.unpack(theta.astype(float))
    self.by_name = dict(
      zip([v.name for v in agent.layout.variables], variables)
    )
    self.scale = (scale_of or self).by_name
    self.alpha = math.exp(self.by_name['temperature/log'][0])

  def _mlp(self, name, x):
    for i in (0, 1):
      w, b = (self.by_name[f'{name}/linear_{i}/{k}'] for k in 'wb')
      x = x @ w + b
      x = np.tanh(x) if i == 0 else x
    return x

  def see(self, observation):
    x = observation.astype(float)
    if 'normalizer/mean' in self.scale:
      deviation = np.sqrt(self.scale['normalizer/variance'] + 1e-6)
      x = np.clip((x - self.scale['normalizer/mean']) / deviation, -10, 10)
    return x

  def sample(self, observation, draws):
    """a = tanh(mu + sigma e), and log pi(a), number by number."""
    outputs = self._mlp('policy', self.see(observation))
    action, log_pi = [], 0.0
    for i in range(A):
      mean, log_sigma = outputs[i], min(max(outputs[A + i], -20.0), 2.0)
      sigma = math.exp(log_sigma)
      u = mean + sigma * draws[i]
      density = math.exp(-(((u - mean) / sigma) ** 2) / 2)
      density /= sigma * math.sqrt(2 * math.pi)
      log_pi += math.log(density) - math.log(1 - math.tanh(u) ** 2)
      action.append(math.tanh(u))
    return np.array(action), log_pi

  def q(self, observation, action, critic):
    x = np.concatenate([self.see(observation), action])
    return self._mlp(f'critic_{critic}', x)[0]


def slow_losses(agent, theta, theta_hat, batch, of_policy=None):
  """Eq. 5, 9 and 18 of arXiv:1812.05905, one transition at a time.

  `of_policy` is the theta of the policy in Eq. 9, where others are fixed.
  """
  online = Slow(agent, theta)
  target = Slow(agent, theta_hat, scale_of=online)
  chooser = online if of_policy is None else Slow(agent, of_policy)
  wanted = agent.config.target_entropy
  wanted = -A if wanted is None else wanted
  at_t = _draws(batch.o_t, batch.r_t, batch.a_tm1)
  at_tm1 = _draws(batch.o_tm1, batch.a_tm1)
  batch = packing.Transition(*(np.asarray(x, float) for x in batch))
  critics, policies, prices, entropies = [], [], [], []
  for i in range(4):  # the fifth has no weight
    a_t, log_pi_t = online.sample(batch.o_t[i], at_t[i])
    value = min(target.q(batch.o_t[i], a_t, k) for k in (0, 1))
    value -= online.alpha * log_pi_t
    y = agent.config.reward_scale * batch.r_t[i]
    y += GAMMA * batch.d_t[i] * value
    critics.append(
      sum(
        (y - online.q(batch.o_tm1[i], batch.a_tm1[i], k)) ** 2 / 2
        for k in (0, 1)
      )
    )
    a, log_pi = chooser.sample(batch.o_tm1[i], at_tm1[i])
    q = min(online.q(batch.o_tm1[i], a, k) for k in (0, 1))
    policies.append(online.alpha * log_pi - q)
    prices.append(-online.alpha * (log_pi + wanted))
    entropies.append(-log_pi)
  return [np.mean(x) for x in (critics, policies, prices, entropies)]


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_the_losses_are_the_sums_of_the_equations(options):
  agent = _agent(**options)
  theta, theta_hat = _theta(agent, 0), _theta(agent, 1)
  batch = _transitions()
  got = agent.loss(
    _variables(agent, theta), _variables(agent, theta_hat), _tensors(batch)
  )
  critic, policy, price, entropy = slow_losses(agent, theta, theta_hat, batch)
  expected = {
    'loss': critic,
    'policy_loss': policy,
    'entropy': entropy,
    'temperature': 0.4,
  }
  for name, value in expected.items():
    np.testing.assert_allclose(got.metrics[name], value, rtol=2e-4)
  np.testing.assert_allclose(got.loss, critic + policy + price, rtol=2e-4)
  assert set(got.metrics) == set(agent.metrics)


def _gradient(agent, theta, theta_hat, batch):
  variables = _variables(agent, theta)
  with tf.GradientTape() as tape:
    tape.watch(variables)
    loss = agent.loss(
      variables, _variables(agent, theta_hat), _tensors(batch)
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
  batch = _transitions()
  got = _gradient(agent, theta, theta_hat, batch)
  groups = agent.layout.groups
  critic, policy, price, _ = range(4)

  def moved_critic(moved):
    return slow_losses(agent, moved, theta_hat, batch)[critic]

  def moved_policy(moved):
    # Alpha and critics stay, and the moved policy chooses.
    return slow_losses(agent, theta, theta_hat, batch, of_policy=moved)[policy]

  # Eq. 18 with the samples of the policy as it is.
  entropy = slow_losses(agent, theta, theta_hat, batch)[-1]
  wanted = agent.config.target_entropy
  wanted = -A if wanted is None else wanted

  def moved_alpha(moved):
    return -math.exp(moved[groups['temperature']][0]) * (wanted - entropy)

  for group, loss in (
    ('critic', moved_critic),
    ('policy', moved_policy),
    ('temperature', moved_alpha),
  ):
    place = groups[group]
    expected = _difference(loss, theta, place)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(got[place], expected, rtol=2e-3, atol=2e-4)
  assert not got[groups['temperature'].stop :].any()  # statistics


def test_nothing_is_learned_through_the_target_networks():
  agent = _agent()
  theta, theta_hat = (_variables(agent, _theta(agent, i)) for i in (0, 1))
  with tf.GradientTape() as tape:
    tape.watch(theta_hat)
    loss = agent.loss(theta, theta_hat, _tensors(_transitions())).loss
  assert tape.gradient(loss, theta_hat) == [None] * len(theta_hat)


def test_the_density_of_a_squashed_gaussian_sums_to_one():
  # A number of [-1, 1] each, by quadrature over u: da = (1 - tanh(u)^2) du.
  mean, sigma = 0.4, 0.8
  u = np.linspace(-6, 7, 20_001)
  noise = tf.constant(((u - mean) / sigma)[:, None], tf.float32)
  ones = tf.ones_like(noise)
  action, log_pi = soft.squashed_gaussian(
    mean * ones, math.log(sigma) * ones, noise
  )
  np.testing.assert_allclose(action[:, 0], np.tanh(u), atol=1e-6)
  density = np.exp(log_pi.numpy().astype(float)) * (1 - np.tanh(u) ** 2)
  assert abs(np.sum(density) * (u[1] - u[0]) - 1) < 1e-3


def test_the_log_probability_is_finite_where_tanh_is_flat():
  noise = tf.constant([[0.0], [0.0]])
  mean = tf.constant([[40.0], [-40.0]])
  with tf.GradientTape() as tape:
    tape.watch(mean)
    action, log_pi = soft.squashed_gaussian(mean, 0.0 * mean, noise)
  np.testing.assert_allclose(action[:, 0], [1.0, -1.0])
  # log N(0) - log(4 exp(-2 |u|)).
  expected = -0.5 * math.log(2 * math.pi) - math.log(4) + 80
  np.testing.assert_allclose(log_pi, [expected] * 2, rtol=1e-6)
  np.testing.assert_allclose(tape.gradient(log_pi, mean)[:, 0], [2.0, -2.0])


def _learner(agent, members=1):
  theta = np.stack([_theta(agent, seed) for seed in range(members)])
  return learner_lib.TFLearner(
    agent,
    theta,
    [agent.learning_rate] * members,
    local_exchange.Local(),
    feeds.Transitions(LAYOUT, agent.batch_size),
  )


def test_a_population_learns_what_its_members_would_learn_alone():
  agent = _agent(normalize_observations=True)
  learner = _learner(agent, members=3)
  packed = np.stack([LAYOUT.pack(*_transitions(p)[:6]) for p in range(3)])
  got = learner.gradient(tf.constant(packed))
  for p, theta in enumerate(learner.parameters()):
    np.testing.assert_allclose(
      got.vector[p],
      _gradient(agent, theta, theta, _transitions(p)),
      rtol=1e-3,
      atol=1e-5,
    )


def test_each_group_learns_at_a_rate_of_its_own():
  # A step of SGD is the gradient times the rate.
  rates = {'policy': 0.02, 'critic': 0.1, 'temperature': 0.5}
  agent = _agent(
    optimizer='sgd',
    **{f'{group}_learning_rate': rate for group, rate in rates.items()},
  )
  learner = _learner(agent)
  before = learner.parameters()[0]
  learner.step(tf.constant(LAYOUT.pack(*_transitions()[:6])))
  step = learner.parameters()[0] - before
  gradient = _gradient(agent, before, before, _transitions())
  for group, rate in rates.items():
    place = agent.layout.groups[group]
    np.testing.assert_allclose(
      step[place], -rate * gradient[place], rtol=1e-3, atol=1e-6
    )
  for setting in agent.rate_settings:
    assert hasattr(agent.config, setting.removeprefix('agent.'))


@pytest.mark.parametrize('target, sign', [(-10.0, -1), (10.0, 1)])
def test_alpha_falls_where_there_is_more_entropy_than_wanted(target, sign):
  agent = _agent(target_entropy=target)
  learner = _learner(agent)
  place = agent.layout.groups['temperature']
  before = learner.parameters()[0, place]
  learner.step(tf.constant(LAYOUT.pack(*_transitions()[:6])))
  assert np.sign(learner.parameters()[0, place] - before) == sign


def test_alpha_begins_as_the_config_says_and_the_target_by_the_action():
  agent = _agent(first_temperature=0.25)
  theta = agent.initial(0)
  place = agent.layout.groups['temperature']
  np.testing.assert_allclose(np.exp(theta[place]), [0.25])
  assert agent.target_entropy == -2.0
  assert _agent(target_entropy=0.0).target_entropy == 0.0


# Acting.


def _observations(*shape):
  return np.random.default_rng(5).normal(size=(*shape, 4)).astype(np.float32)


def test_actions_are_drawn_from_the_policy():
  agent = _agent(normalize_observations=True)
  theta = np.stack([_theta(agent, 0), _theta(agent, 1)])
  observation = _observations(2, 3)
  got = agent.act(theta, observation, 0, np.random.default_rng(1))
  draws = np.random.default_rng(1).standard_normal((2, 3, A), np.float32)
  for p in range(2):
    slow = Slow(agent, theta[p])
    expected = [slow.sample(o, d)[0] for o, d in zip(observation[p], draws[p])]
    np.testing.assert_allclose(got[p], expected, rtol=1e-4, atol=1e-5)


def test_what_is_judged_is_the_mean_through_the_tanh():
  agent = _agent()
  theta, observation = _theta(agent, 0), _observations(4)
  slow = Slow(agent, theta)
  policy = agent.greedy(theta)
  theta *= -1.0  # the learner goes on
  expected = [slow.sample(o, np.zeros(A))[0] for o in observation]
  np.testing.assert_allclose(
    policy(observation), expected, rtol=1e-4, atol=1e-5
  )


def test_the_first_actions_are_uniform():
  agent = _agent(random_steps=10)
  theta = np.stack([agent.initial(0)])
  observation = _observations(1, 2_000)
  first = agent.act(theta, observation, 9, np.random.default_rng(0))
  assert first.dtype == np.float32
  # The deviation of a uniform number of [-1, 1] is 0.577.
  np.testing.assert_allclose(first.std(axis=(0, 1)), 3**-0.5, atol=0.02)
  assert [agent.exploration(n) for n in (9, 10)] == [1.0, 0.0]


def test_actors_in_one_batch_act_as_each_would_alone():
  agent = _agent(random_steps=10)
  theta = _theta(agent, 0)
  acting = batched_acting.Acting(agent, 2)
  assert acting.batchable
  steps = (5, 50)  # one is still random

  def requests():
    return [
      batched_acting.Request(
        agent.actor(base.ActorInfo(i, 2, 0), 2),
        _observations(2, 2)[i],
        steps[i],
        np.random.default_rng(i),
      )
      for i in range(2)
    ]

  together = acting.act(theta, requests())
  for got, request in zip(together, requests()):
    alone = request.actor.act(
      theta, request.observation, request.actor_steps, request.rng
    )
    np.testing.assert_allclose(got, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'temperature_learning_rate': 0.0}, 'agent.temperature_learning_rate'),
    ({'first_temperature': 0.0}, 'agent.first_temperature'),
    ({'random_steps': -1}, 'agent.random_steps=-1 must be'),
  ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    sac.Config(**options)


def test_discrete_actions_are_refused():
  spec = environments.Spec('Buttons-v0', (3,), num_actions=4)
  with pytest.raises(
    environments.EnvironmentRefused, match='but SAC needs continuous'
  ):
    sac.SAC(sac.Config(), spec)
