"""What a learner asks of several shards, and makes of their answers."""

import numpy as np
import pytest

from murmuration.agents.exchange import remote_apply
from murmuration.launch.services import shard as shard_lib
from murmuration.launch.services import shard_exchange

PLACES = [slice(0, 3), slice(3, 4)]


class Fake:
  """Stands for a client of a shard."""

  def __init__(self, place, **reply):
    values = {'accepted': True, 'version': 0, 'steps': 0, 'scheduled': 0}
    theta = np.arange(place.start, place.stop, dtype=np.float32)
    self.reply = shard_lib.Reply(
      **{**values, **reply}, theta=theta, life='first'
    )

  def with_deadline(self, timeout_s):
    del timeout_s
    return self

  def pull(self):
    return tuple(self.reply)

  def push(self, *unused):
    return tuple(self.reply)


def make(*replies):
  fakes = [Fake(place, **reply) for place, reply in zip(PLACES, replies)]
  group = shard_exchange.Shards(fakes, PLACES)
  np.testing.assert_array_equal(group.start(), [0, 1, 2, 3])
  return group


MESSAGE = remote_apply.Message(np.ones(4, np.float32), {}, 0)


@pytest.mark.parametrize('order', [1, -1])
def test_an_answer_is_of_the_oldest_slice_and_of_the_most_steps(order):
  replies = (
    {'version': 7, 'steps': 100, 'scheduled': 9},
    {'version': 5, 'steps': 80, 'scheduled': 6},
  )
  group = make(*replies[::order])
  answer = group.push(MESSAGE)
  assert (answer.version, answer.steps, answer.scheduled) == (5, 100, 6)
  np.testing.assert_array_equal(answer.theta, [0, 1, 2, 3])
  assert group.mixed == 1


def test_of_a_gradient_that_some_shards_reject_the_rest_is_accepted():
  group = make({'accepted': False}, {})
  answer = group.push(MESSAGE)
  assert answer.accepted == 0.25  # a parameter of four
  assert group.mixed == 0
