"""What a learner asks of several shards, and makes of their answers."""

import numpy as np
import pytest

from agents.exchange import remote_apply
from launch import rpc
from launch.services import shard as shard_lib
from launch.services import shard_exchange

PLACES = [slice(0, 3), slice(3, 4)]


class Fake:
  """Stands for a client of a shard; notes the deadlines of its calls."""

  def __init__(self, place, **reply):
    values = {'accepted': True, 'version': 0, 'steps': 0, 'scheduled': 0}
    theta = np.arange(place.start, place.stop, dtype=np.float32)
    self.reply = shard_lib.Reply(
      **{**values, **reply}, theta=theta, life='first'
    )
    self.failure = None  # whether a call that fails is delivered
    self.calls = []

  def with_deadline(self, timeout_s):
    return Timed(self, timeout_s)


class Timed:
  def __init__(self, fake, timeout_s):
    self._fake, self._timeout_s = fake, timeout_s

  def pull(self):
    return self._call('pull')

  def push(self, *unused):
    return self._call('push')

  def _call(self, method):
    is_probe = self._timeout_s == shard_exchange._PROBE_S
    self._fake.calls.append('probe' if is_probe else method)
    failure = self._fake.failure
    # A slow one answers a call that has the whole deadline.
    if failure is None or (failure and not is_probe):
      return tuple(self._fake.reply)
    raise rpc.Unavailable('nowhere', method, failure, 'no answer')


def make(*replies, **options):
  fakes = [Fake(place, **reply) for place, reply in zip(PLACES, replies)]
  group = shard_exchange.Shards(fakes, PLACES, **options)
  np.testing.assert_array_equal(group.start(), [0, 1, 2, 3])
  for fake in fakes:
    fake.calls.clear()
  return fakes, group


MESSAGE = remote_apply.Message(np.ones(4, np.float32), {}, 0)


@pytest.mark.parametrize('order', [1, -1])
def test_an_answer_is_of_the_oldest_slice_and_of_the_most_steps(order):
  replies = (
    {'version': 7, 'steps': 100, 'scheduled': 9},
    {'version': 5, 'steps': 80, 'scheduled': 6},
  )
  _, group = make(*replies[::order])
  answer = group.push(MESSAGE)
  assert (answer.version, answer.steps, answer.scheduled) == (5, 100, 6)
  np.testing.assert_array_equal(answer.theta, [0, 1, 2, 3])
  assert group.mixed == 1


def test_of_a_gradient_that_some_shards_reject_the_rest_is_accepted():
  _, group = make({'accepted': False}, {})
  answer = group.push(MESSAGE)
  assert answer.accepted == 0.25  # a parameter of four
  assert group.mixed == 0


def test_a_shard_that_is_away_is_looked_for_now_and_then(monkeypatch):
  monkeypatch.setattr(shard_exchange, '_AWAY_S', 1e6)
  (there, away), group = make({}, {}, required=False)
  away.failure = False
  for _ in range(3):
    assert group.push(MESSAGE).accepted == 0.75
  assert (there.calls, away.calls) == (['push'] * 3, ['push'])
  group._back[1] = 0.0  # as after _AWAY_S
  for _ in range(3):
    group.push(MESSAGE)
  assert away.calls == ['push', 'probe']
  group._back[1], away.failure = 0.0, None
  for _ in range(2):
    assert group.push(MESSAGE).accepted == 1
  # Once it is back, it is not looked for before each call.
  assert away.calls == ['push', 'probe', 'probe', 'push', 'push']


def test_a_shard_that_is_slow_is_there():
  (_, slow), group = make({}, {}, required=False)
  slow.failure = False
  group.push(MESSAGE)
  group._back[1], slow.failure = 0.0, True
  assert group.push(MESSAGE).accepted == 1
  assert slow.calls == ['push', 'probe', 'push']
