"""How DDPG acts: noise, greedy policies, priorities of new items."""

import numpy as np

from murmuration.agents import base
from tests.agents import ddpg_cases as cases


def test_new_items_get_the_largest_priority_of_the_learner_so_far():
  agent = cases.make_agent(prioritized=True)
  theta = agent.initial(0)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 2)
  packed = np.zeros((3, cases.LAYOUT.width), np.float32)
  np.testing.assert_array_equal(actor.priorities(theta, packed), [1.0] * 3)
  place = agent.layout.groups['priority']
  theta[place] = 7.5
  np.testing.assert_array_equal(actor.priorities(theta, packed), [7.5] * 3)
  # Of several learners it is the maximum.
  (largest,) = (v for v in agent.layout.variables if v.slice == place)
  assert agent.maxima == (largest.name,)
  uniform = cases.make_agent().actor(base.ActorInfo(0, 1, 0), 2)
  assert uniform.priorities(cases.make_agent().initial(0), packed) is None


def test_replay_is_prioritized_only_where_the_config_says_so():
  assert cases.make_agent().priority_exponent is None
  assert (
    cases.make_agent(prioritized=True, priority_exponent=0.5).priority_exponent
    == 0.5
  )


def _observations(members, number):
  rng = np.random.default_rng(5)
  return rng.normal(size=(members, number, 2, 2)).astype(np.float32)


def test_without_noise_each_member_takes_its_own_action():
  agent = cases.make_agent(sigma=0.0, normalize_observations=True)
  theta = np.stack([cases.make_theta(agent, 0), cases.make_theta(agent, 1)])
  observation = _observations(2, 7)
  expected = [
    [cases.Slow(agent, theta[p]).mu(o) for o in observation[p]]
    for p in range(2)
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
  agent = cases.make_agent(random_steps=10)
  theta, observation = cases.make_theta(agent, 0), _observations(1, 6)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 6)
  for steps in (0, 10):
    np.testing.assert_array_equal(
      actor.act(theta, observation[0], steps, np.random.default_rng(1)),
      agent.act(theta[None], observation, steps, np.random.default_rng(1))[0],
    )


def test_each_actor_has_a_noise_of_its_own_that_ends_with_an_episode():
  agent = cases.make_agent(noise='ornstein_uhlenbeck', sigma=0.05)
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
  agent = cases.make_agent(noise='ornstein_uhlenbeck', sigma=0.05)
  theta = np.stack([agent.initial(seed) for seed in range(2)])
  observation = _observations(2, 1)
  still = cases.make_agent(sigma=0.0).act(
    theta, observation, 0, np.random.default_rng(0)
  )

  def noise_of(agent, seed):
    rng = np.random.default_rng(seed)
    return agent.act(theta, observation, 0, rng) - still

  first = noise_of(agent, 0)
  agent.ended(np.array([[True], [False]]))
  fresh = noise_of(cases.make_agent(noise='ornstein_uhlenbeck', sigma=0.05), 1)
  second = noise_of(agent, 1)
  np.testing.assert_allclose(second[0], fresh[0], atol=1e-6)
  np.testing.assert_allclose(second[1], fresh[1] + 0.85 * first[1], atol=1e-6)


def test_exploration_is_sigma_after_the_random_steps():
  agent = cases.make_agent(sigma=0.3, random_steps=100)
  assert agent.exploration(99) == 1.0
  assert agent.exploration(100) == 0.3


def test_a_greedy_policy_keeps_the_parameters_it_was_made_with():
  agent = cases.make_agent()
  theta, observation = cases.make_theta(agent, 0), _observations(1, 4)[0]
  policy = agent.greedy(theta)
  before = policy(observation)
  theta *= -1.0  # the learner goes on
  np.testing.assert_array_equal(policy(observation), before)


def test_the_first_actions_are_near_the_middle_and_seeds_are_kept():
  agent = cases.make_agent()
  theta = agent.initial(7)
  assert theta.dtype == np.float32
  np.testing.assert_array_equal(theta, cases.make_agent().initial(7))
  assert not np.array_equal(theta, agent.initial(8))
  assert np.abs(agent.greedy(theta)(_observations(1, 50)[0])).max() < 0.1
