"""Given episodes: whole ones, each from its seed, whoever plays beside them."""

import numpy as np
import pytest

from murmuration.environment_loops import environments
from murmuration.environment_loops import episodes
from murmuration.environment_loops import vector

NAMES = ('CartPole-v1', 'Acrobot-v1', 'Hopper-v5', 'LunarLander-v3')


class _Fixed:
  """An episode's actions follow from its number and its step."""

  def __init__(self, spec, num):
    self._spec, self._episode = spec, np.zeros(num, int)
    self._t = np.zeros(num, int)
    self.begun = []

  def begin(self, member, episode):
    self._episode[member], self._t[member] = episode, 0
    self.begun.append((member, episode))

  def end(self, member):
    self.begun.append((member, None))

  def __call__(self, observation):
    actions = [
      action(self._spec, episode, t)
      for episode, t in zip(self._episode, self._t)
    ]
    self._t += 1
    return np.array(actions)


def action(spec, episode, t):
  rng = np.random.default_rng([episode, t])
  if spec.discrete:
    return int(rng.integers(spec.num_actions))
  return rng.uniform(-1, 1, spec.action_shape)


@pytest.mark.parametrize('name', NAMES)
def test_an_episode_is_that_of_an_environment_alone(name):
  spec, seeds = environments.spec(name), [5, 6, 7, 8, 9]
  environment = vector.make_vector(name, 2, 0)
  policy = _Fixed(spec, 2)
  for _ in range(2):  # environments are used again
    found = episodes.play(policy, environment, seeds)
  environment.close()
  for number in (0, 3, 4):
    alone = environments.make(name, seeds[number])
    step, total, t = alone.reset(), 0.0, 0
    while not step.last():
      step = alone.step(np.asarray(action(spec, number, t)))
      total += step.reward
      t += 1
    alone.close()
    assert found.lengths[number] == t
    assert found.returns[number] == pytest.approx(total, rel=1e-5, abs=1e-5)


def test_each_environment_plays_its_own_list():
  environment = vector.make_vector('CartPole-v1', 2, 0)
  policy = _Fixed(environment.spec, 2)
  found = episodes.play(policy, environment, [1, 2, 3, 4, 5])
  begun = sorted(e for _, e in policy.begun if e is not None)
  assert begun == list(range(5))
  assert [e for m, e in policy.begun if m == 0] == [0, 2, 4, None]
  # One point for each step: returns and lengths are of whole episodes alone.
  np.testing.assert_array_equal(found.returns, found.lengths)


@pytest.mark.parametrize('name', ['Hopper-v5', 'LunarLander-v3', 'Ant-v5'])
def test_who_rests_is_left_alone_until_all_are_reset(name):
  """Of these, episodes have different lengths: most would step for nothing."""
  environment = vector.make_vector(name, 2, 0)
  rng = np.random.default_rng(0)

  def step():
    spec = environment.spec
    if spec.discrete:
      return environment.step(rng.integers(spec.num_actions, size=2))
    return environment.step(rng.uniform(-1, 1, (2, *spec.action_shape)))

  environment.reset()
  environment.rest(1)
  still = step().observation[1].copy()
  ends = 0
  while ends < 2:
    found = step()
    ends += found.last[0]
    assert not found.last[1]
    np.testing.assert_array_equal(found.observation[1], still)
    assert np.abs(found.next_observation[0] - still).max() > 0
  environment.reset()
  moved = step().observation[1]
  while not (found := step()).last[1]:
    assert not np.array_equal(found.observation[1], moved)
    moved = found.observation[1].copy()
  environment.close()


def test_who_rests_begins_no_episode_where_the_limit_comes(register):
  environment = vector.make_vector(register(max_episode_steps=3), 2, 0)
  environment.reset()
  environment.rest(1)
  steps = [environment.step(np.ones(2, np.int32)) for _ in range(3)]
  assert steps[-1].last.tolist() == [True, False]


class _Ones:
  """Pays 1 a step in the toys of conftest.py."""

  def begin(self, member, episode):
    pass

  def end(self, member):
    pass

  def __call__(self, observation):
    return np.ones(len(observation), np.int32)


def test_an_episode_that_breaks_has_no_return_and_those_before_it_have(
  register,
):
  name = register(max_episode_steps=3, bad_reward_at=2, bad_from_episode=1)
  environment = vector.make_vector(name, 2, 0, on_fault=vector.DROP)
  found = episodes.play(_Ones(), environment, [1, 2, 3, 4, 5])
  np.testing.assert_array_equal(found.returns, [3.0, 3.0, *[np.nan] * 3])
  np.testing.assert_array_equal(found.lengths, [3, 3, 2, 2, 2])


def test_it_stops_when_asked_and_gives_nothing():
  environment = vector.make_vector('CartPole-v1', 1, 0)
  policy = _Fixed(environment.spec, 1)
  assert episodes.play(policy, environment, [1], lambda: True) is None


def test_more_environments_than_episodes_are_refused():
  environment = vector.make_vector('CartPole-v1', 3, 0)
  with pytest.raises(ValueError, match='too many'):
    episodes.play(_Fixed(environment.spec, 3), environment, [1])
