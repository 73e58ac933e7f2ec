"""Parameters on their way to actors: only what is newer, and never a wait."""

import numpy as np
import pytest

from murmuration.agents import parameters
from murmuration.launch import rpc
from murmuration.launch.services import variables

LAYOUT = parameters.Layout([('w', (3,))])
AWAY = rpc.Unavailable('localhost:1', 'get_parameters', False, 'nobody there')


class _Learner:
  """Serves what a test publishes; `away` has it not answer."""

  address = 'localhost:1'

  def __init__(self):
    self.published = variables.Published(LAYOUT)
    self.away = None
    self.asked = []

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def get_parameters(self, have_version):
    self.asked.append(have_version)
    if self.away is not None:
      raise self.away
    return self.published.get(have_version)


class _Clock:
  now = 50.0

  def __call__(self):
    return self.now


@pytest.fixture
def learner():
  return _Learner()


@pytest.fixture
def clock():
  return _Clock()


@pytest.fixture
def follower(learner, clock):
  learner.published.publish(0, np.array([1.0, 2.0, 3.0]))
  follower = variables.Follower(learner, LAYOUT, max_age_s=60.0, clock=clock)
  follower.start()
  return follower


def test_a_follower_takes_what_is_newer_and_nothing_else(learner, follower):
  np.testing.assert_array_equal(follower.theta, [1, 2, 3])
  assert follower.version == 0
  assert not follower.fetch()
  learner.published.publish(8, np.array([4.0, 5.0, 6.0]))
  assert follower.fetch()
  assert follower.version == 8
  np.testing.assert_array_equal(follower.theta, [4, 5, 6])
  assert learner.asked == [-1, 0, 0]


def test_a_version_is_encoded_once_for_all_actors():
  published = variables.Published(LAYOUT)
  published.publish(3, np.zeros(3))
  assert published.get(-1)['theta'] is published.get(2)['theta']
  assert published.get(3) == {'version': 3, 'theta': None, 'last': False}
  # Each answer is counted as often as it was sent.
  assert published.sent_bytes == 2 * len(published.get(-1)['theta'])
  published.end()
  assert published.get(3) == {'version': 3, 'theta': None, 'last': True}


def test_parameters_that_are_not_finite_are_never_served():
  published = variables.Published(LAYOUT)
  published.publish(3, np.ones(3))
  published.publish(4, np.array([1.0, np.nan, 1.0]))
  assert published.get(-1)['version'] == 3


def test_a_learner_that_is_away_does_not_stop_the_actor(
  learner, follower, clock
):
  learner.away = AWAY
  learner.published.publish(1, np.ones(3))
  clock.now += 10
  assert not follower.fetch()
  # Not asked again at once.
  asked = len(learner.asked)
  assert not follower.fetch()
  assert len(learner.asked) == asked
  clock.now += 5
  learner.away = None
  assert follower.fetch()
  assert (follower.version, follower.age_s) == (1, 0.0)
  # The next time, the pause is as short as the first time.
  learner.away = AWAY
  assert not follower.fetch()
  asked = len(learner.asked)
  clock.now += 0.25
  assert not follower.fetch()
  assert len(learner.asked) == asked + 1


def test_parameters_that_are_too_old_are_waited_for(
  learner, follower, clock, caplog
):
  learner.published.publish(1, np.ones(3))
  clock.now += 61
  failures = iter([AWAY, AWAY])
  answer = learner.get_parameters

  def slow(have_version):
    for failure in failures:
      raise failure
    return answer(have_version)

  learner.get_parameters = slow
  assert follower.fetch()
  assert follower.version == 1
  assert 'The parameters are 61 s old: waiting for the learner' in caplog.text


def test_a_learner_that_was_not_asked_for_long_is_not_said_to_be_away(
  learner, follower, clock, caplog
):
  learner.published.publish(1, np.ones(3))
  clock.now += 61  # a long rollout
  assert follower.fetch()
  assert (follower.version, follower.age_s) == (1, 0.0)
  assert not caplog.records


def test_a_stop_ends_the_wait_for_the_first_parameters(learner):
  stopping = variables.Follower(learner, LAYOUT, should_stop=lambda: True)
  with pytest.raises(rpc.Unavailable, match='no parameters yet'):
    stopping.start()


def test_another_network_is_refused(learner):
  learner.published.publish(0, np.zeros(3))
  other = variables.Follower(learner, parameters.Layout([('w', (2,))]))
  with pytest.raises(parameters.LayoutMismatch):
    other.start()


def test_an_actor_on_policy_waits_for_what_is_newer(learner, follower):
  answer = learner.get_parameters
  polls = []

  def publishes_at_the_third(have_version):
    polls.append(have_version)
    if len(polls) == 3:
      learner.published.publish(1, np.ones(3))
    return answer(have_version)

  learner.get_parameters = publishes_at_the_third
  assert follower.fetch_newer(30.0)
  assert (follower.version, len(polls)) == (1, 3)


def test_an_actor_on_policy_goes_on_where_nothing_comes(
  learner, follower, clock
):
  answer = learner.get_parameters

  def late(have_version):
    clock.now += 10
    return answer(have_version)

  learner.get_parameters = late
  assert not follower.fetch_newer(30.0)
  assert follower.version == 0
