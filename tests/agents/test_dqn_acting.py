"""How DQN acts: epsilons, ladders, the priorities of an actor."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import base
from murmuration.replay import packing
from tests.agents import dqn_cases as cases


def test_epsilon_falls_in_a_line_and_stays():
  agent = cases.make_agent(
    epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=300
  )
  got = [agent.exploration(n) for n in (0, 100, 150, 300, 10_000)]
  np.testing.assert_allclose(got, [0.8, 0.6, 0.5, 0.2, 0.2])


def _observations(members, number):
  rng = np.random.default_rng(5)
  return rng.normal(size=(members, number, 2, 2)).astype(np.float32)


def test_an_agent_can_be_pickled():
  agent, observation = cases.make_agent(), _observations(1, 5)
  theta = agent.initial(0)
  values, copied = agent.values(), pickle.loads(pickle.dumps(agent)).values()
  np.testing.assert_array_equal(
    copied(theta, observation), values(theta, observation)
  )


def _best(agent, theta, observation):
  return np.array([
    [cases.slow_q(agent, theta[p], o).argmax() for o in observation[p]]
    for p in range(len(theta))
  ])  # fmt: skip


@pytest.mark.parametrize('steps', [0, 50, 100])
def test_actions_are_random_as_often_as_epsilon_says(steps):
  agent = cases.make_agent(
    epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100
  )
  theta = np.stack([agent.initial(0), agent.initial(1)])
  observation = _observations(2, 3000)
  actions = agent.act(theta, observation, steps, np.random.default_rng(0))
  assert actions.shape == (2, 3000)
  assert actions.dtype == np.int32
  other = actions != _best(agent, theta, observation)
  # A random action is the best one in one of three cases.
  share = agent.exploration(steps) * 2 / 3
  deviation = np.sqrt(share * (1 - share) / 3000)
  np.testing.assert_allclose(other.mean(axis=1), share, atol=4 * deviation)
  if steps == 0:
    assert set(np.unique(actions)) == {0, 1, 2}


def test_without_epsilon_each_member_takes_its_best_action():
  agent = cases.make_agent(epsilon_start=0.0, epsilon_end=0.0)
  theta = np.stack([agent.initial(0), agent.initial(1)])
  observation = _observations(2, 40)
  best = _best(agent, theta, observation)
  actions = agent.act(theta, observation, 0, np.random.default_rng(0))
  np.testing.assert_array_equal(actions, best)
  for member in range(2):
    policy = agent.greedy(theta[member])
    np.testing.assert_array_equal(policy(observation[member]), best[member])


def test_a_greedy_policy_keeps_the_parameters_it_was_made_with():
  agent = cases.make_agent()
  theta = agent.initial(0)
  observation = _observations(1, 40)[0]
  policy = agent.greedy(theta)
  before = policy(observation)
  theta *= -1.0  # the learner goes on
  np.testing.assert_array_equal(policy(observation), before)


@pytest.mark.parametrize('dueling', [False, True])
def test_an_actors_priorities_are_those_of_the_learner(dueling):
  # With one network for both roles double Q-learning is the maximum, so the
  # learner computes the same as the actor.
  agent = cases.make_agent(
    gamma=cases.GAMMA, prioritized=True, reward_scale=0.25, dueling=dueling
  )
  theta = agent.initial(0)
  transition = cases.make_transitions()
  layout = packing.TransitionLayout(cases.SPEC.observation_shape)
  packed = layout.pack(*transition[:6])
  actor = agent.actor(base.ActorInfo(1, 2, 0), 3)
  got = actor.priorities(theta, packed)
  assert got.shape == (5,)
  assert got.dtype == np.float32
  variables = cases.variables_of(agent, theta)
  learned = agent.loss(
    variables, variables, packing.Transition(*map(tf.constant, transition))
  ).priorities
  np.testing.assert_allclose(got, learned, rtol=1e-5)


def test_an_actors_priorities_are_the_formula_of_ape_x():
  agent = cases.make_agent(
    gamma=cases.GAMMA, prioritized=True, reward_scale=0.25
  )
  theta, transition = agent.initial(3), cases.make_transitions()
  packed = packing.TransitionLayout((2, 2)).pack(*transition[:6])
  slow = []
  for o_tm1, a_tm1, r_t, d_t, o_t, _ in zip(*transition[:6]):
    y = 0.25 * r_t + cases.GAMMA * d_t * max(cases.slow_q(agent, theta, o_t))
    slow.append(abs(y - cases.slow_q(agent, theta, o_tm1)[a_tm1]) + 1e-6)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 1)
  np.testing.assert_allclose(
    actor.priorities(theta, packed), slow, rtol=1e-4, atol=1e-6
  )


def test_an_actor_goes_on_with_new_parameters():
  agent = cases.make_agent(prioritized=True, exploration='ladder', epsilon=0.0)
  actor = agent.actor(base.ActorInfo(0, 1, 0), 200)
  observation, rng = _observations(1, 200), np.random.default_rng(0)
  packed = packing.TransitionLayout((2, 2)).pack(*cases.make_transitions()[:6])
  first = None
  for seed in range(3):
    theta = agent.initial(seed)
    best = _best(agent, theta[None], observation)[0]
    for _ in range(2):
      actions = actor.act(theta, observation[0], 0, rng)
      np.testing.assert_array_equal(actions, best)
    found = actor.priorities(theta, packed)
    assert first is None or not np.allclose(found, first)
    first = found


def test_uniform_replay_needs_no_priorities():
  agent = cases.make_agent()
  packed = packing.TransitionLayout((2, 2)).pack(*cases.make_transitions()[:6])
  actor = agent.actor(base.ActorInfo(0, 1, 0), 1)
  assert actor.priorities(agent.initial(0), packed) is None
  assert agent.priority_exponent is None
  assert agent.importance_exponent == 0.0


def test_each_environment_of_an_actor_has_its_rung_of_the_ladder():
  agent = cases.make_agent(exploration='ladder', epsilon=0.8, epsilon_alpha=3.0)
  theta, rng = agent.initial(0), np.random.default_rng(0)
  observation, steps = _observations(1, 4)[0], 3000
  best = _best(agent, theta[None], observation[None])[0]
  for index in range(2):
    actor = agent.actor(base.ActorInfo(index, 2, 0), 4)
    # Constant in time: whatever the number of steps.
    actions = np.stack(
      [actor.act(theta, observation, 10**t % 10**7, rng) for t in range(steps)]
    )
    assert actions.shape == (steps, 4)
    epsilon = np.array([0.8 ** (1 + 3 * (2 * k + index) / 7) for k in range(4)])
    share = epsilon * 2 / 3
    error = np.sqrt(share * (1 - share) / steps)
    other = (actions != best).mean(axis=0)
    assert (np.abs(other - share) < 3.5 * error).all(), (other, share)


def test_an_actor_on_a_schedule_acts_as_the_agent_does():
  agent = cases.make_agent(
    epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=100
  )
  theta, observation = agent.initial(0), _observations(1, 50)
  actor = agent.actor(base.ActorInfo(1, 3, 0), 50)
  for steps in (0, 60, 1000):
    np.testing.assert_array_equal(
      actor.act(theta, observation[0], steps, np.random.default_rng(steps)),
      agent.act(theta[None], observation, steps, np.random.default_rng(steps))[
        0
      ],
    )


def test_a_ladder_of_one_process_spans_its_environments():
  agent = cases.make_agent(exploration='ladder', epsilon=0.5, epsilon_alpha=2.0)
  alone = base.ActorInfo(0, 1, 0)
  np.testing.assert_allclose(agent.epsilons(alone, 3, 0), [0.5, 0.5**2, 0.5**3])
  np.testing.assert_allclose(agent.epsilons(alone, 1, 0), [0.5])
  assert agent.exploration(10**6) == 0.5
  # Two members with three environments each.
  theta = np.stack([agent.initial(0), agent.initial(1)])
  observation = _observations(2, 3)
  best = _best(agent, theta, observation)
  rng = np.random.default_rng(0)
  other = np.mean(
    [agent.act(theta, observation, 0, rng) != best for _ in range(3000)], axis=0
  )
  share = np.array([0.5, 0.5**2, 0.5**3]) * 2 / 3
  error = np.sqrt(share * (1 - share) / 3000)
  assert (np.abs(other - share) < 4 * error).all(), (other, share)


def test_every_actor_and_purpose_has_a_seed_of_its_own():
  seeds = {
    base.actor_seed(base.ActorInfo(index, 16, run), purpose)
    for index in range(16)
    for run in range(4)
    for purpose in ('weights', 'environment', 'exploration')
  }
  assert len(seeds) == 16 * 4 * 3
  assert all(0 <= seed < 2**31 for seed in seeds)
  info = base.ActorInfo(3, 16, 1)
  assert base.actor_seed(info, 'weights') == base.actor_seed(info, 'weights')
