"""Members in one process: each acts by its own row, in its own environments."""

import numpy as np
import pytest

from murmuration.agents import base
from murmuration.agents import members

OBSERVATION = np.arange(6.0)[:, None]  # of three members with two environments
THETA = np.array([[100.0], [200.0], [300.0]], np.float32)


class _Actor:
  """Its actions, priorities and what it keeps are sums that say whose."""

  def __init__(self, info):
    self.info = info
    self.lasts = []

  def act(self, row, observation, actor_steps, rng):
    del actor_steps, rng
    self.row = row
    self.behaviour = self.core = row + observation
    return row[0] + observation[:, 0]

  def priorities(self, row, packed):
    return row[0] + packed[:, 0]

  def ended(self, last):
    self.lasts.append(last.tolist())


class _Agent:
  """Acts for all members at once, or makes an actor for each."""

  def __init__(self):
    self.lasts = []

  def act(self, theta, observation, actor_steps, rng):
    del actor_steps, rng
    return theta + observation[..., 0]

  def actor(self, info, num_envs):
    assert num_envs == 2
    return _Actor(info)

  def ended(self, last):
    self.lasts.append(last.tolist())


def test_one_call_acts_for_all_members():
  agent = _Agent()
  population = members.Population(agent)
  action = population.act(THETA, OBSERVATION[:3], 0, None)
  np.testing.assert_array_equal(action, [100, 201, 302])
  population.ended(np.array([False, True, False]))
  assert agent.lasts == [[[False], [True], [False]]]


@pytest.mark.parametrize('count', [1, 3])
def test_each_member_acts_by_its_own_row(count):
  infos = [base.ActorInfo(i, count, 7 + i) for i in range(count)]
  found = members.Unrolling(_Agent(), infos, 2)
  # An actor explores as the only one of its agent, with a seed of its own.
  assert [actor.info for actor in found.actors] == [
    base.ActorInfo(0, 1, info.seed) for info in infos
  ]
  observation = OBSERVATION[: 2 * count]
  for theta in (THETA[:count], 2 * THETA[:count]):  # also of new parameters
    rows = np.repeat(theta[:, 0], 2)
    wanted = rows + observation[:, 0]
    action = found.act(theta, observation, 0, None)
    np.testing.assert_array_equal(action, wanted)
    np.testing.assert_array_equal(found.behaviour, wanted[:, None])
    np.testing.assert_array_equal(found.core, wanted[:, None])
    for member in range(count):
      np.testing.assert_array_equal(
        found.priorities(member, np.array([[1.0], [2.0]])),
        theta[member, 0] + [1.0, 2.0],
      )
    # Actors know a row again by its identity.
    before = [actor.row for actor in found.actors]
    found.act(theta, observation, 0, None)
    assert all(a.row is row for a, row in zip(found.actors, before))
  found.ended(np.arange(2 * count) == 1)
  lasts = [actor.lasts for actor in found.actors]
  assert lasts == [[[False, True]]] + [[[False, False]]] * (count - 1)
