"""The copy of the parameters that a host has for all of its actors; no Ray."""

import contextlib
import threading
import time

import numpy as np
import pytest

from agents import parameters
from launch import pulse
from launch import rpc
from launch.engines.cluster import copies
from launch.rpc import directory
from launch.rpc import hosts
from launch.rpc import server
from launch.services import variables
from tests import paced


class Learner:
  """Serves parameters, and counts who asks and what that costs."""

  serves = ('get_parameters',)

  def __init__(self):
    self.version, self.asked, self.sent = 1, 0, 0

  def get_parameters(self, have_version):
    self.asked += 1
    if have_version == self.version:
      return {'version': self.version, 'theta': None}
    self.sent += 1
    return {'version': self.version, 'theta': bytes([self.version]) * 50_000}


def newer(actor, have_version):
  """What an actor gets that has a version, once there is another.

  On a busy machine it may be longer on its way than an actor waits.
  """
  deadline = time.monotonic() + 60
  while True:
    with contextlib.suppress(rpc.Unavailable):
      answer = actor.get_parameters(have_version)
      if answer['theta'] is not None:
        return answer
    assert time.monotonic() < deadline


def test_parameters_come_to_a_host_once_for_all_of_its_actors(
  on_hosts, tmp_path
):
  first, second = on_hosts(2)
  learner = Learner()
  credentials = hosts.Directory(tmp_path / '1').credentials
  name = directory.Name('learner/0', hosts.Directory())
  address = first.claim('learner/0', 'rpc')
  actors = [rpc.near(rpc.Client(name, 20.0)) for _ in range(8)]
  with server.serve(learner, address, credentials=credentials):
    for version in (1, 2):
      learner.version = version
      for actor in actors:
        answer = newer(actor, version - 1)
        assert answer['version'] == version
        assert answer['theta'] == bytes([version]) * 50_000
        assert actor.get_parameters(version)['theta'] is None
    # Two versions for the host, and not for each of its eight actors.
    assert learner.sent == 2
  # It is away: an actor hears of it as if it had asked itself.
  deadline = time.monotonic() + 60
  with pytest.raises(rpc.Unavailable, match='learner/0'):
    while time.monotonic() < deadline:  # it may take long to find that out
      actors[0].get_parameters(0)


class Published:
  """A learner with parameters of 2 MB."""

  serves = ('get_parameters',)
  layout = parameters.Layout([('w', (500_000,))])

  def __init__(self):
    self._published = variables.Published(self.layout)
    self.publish(1)

  def publish(self, version):
    theta = np.full(self.layout.size, float(version), np.float32)
    self._published.publish(version, theta)

  def get_parameters(self, have_version):
    return self._published.get(have_version)


@pytest.mark.long
def test_parameters_come_over_a_link_that_takes_longer_than_a_deadline(
  on_hosts, tmp_path, monkeypatch
):
  monkeypatch.setattr(pulse, 'WAIT_S', 60.0)
  first, _ = on_hosts(2)
  learner = Published()
  credentials = hosts.Directory(tmp_path / '1').credentials
  name = directory.Name('learner/0', hosts.Directory())
  address = first.claim('learner/0', 'rpc').split(' ')[1]
  with (
    server.serve(learner, address, credentials=credentials),
    paced.link(address, 0.15) as slow,  # more than 4 s for 2 MB
  ):
    first._names.find.remote('learner/0')['there'] = slow
    actor = variables.Follower(rpc.Client(name, 20.0), learner.layout)
    actor.start()
    assert actor.version == 1
    learner.publish(2)
    # It acts on with what it has, and waits no longer than a call may take.
    began, times = time.monotonic(), 0
    while not actor.fetch():
      times += 1
      assert actor.age_s < 5.0  # it has just heard of the learner
      assert time.monotonic() - began < 60.0
    assert times and time.monotonic() - began > 4.0
    assert actor.version == 2
    np.testing.assert_array_equal(actor.theta, 2.0)


def test_a_learner_without_parameters_does_not_make_old_ones_new():
  class Restarted:
    answers = [
      {'version': 500, 'theta': b'old'},
      {'version': -1, 'theta': None},  # started again
      {'version': 3, 'theta': b'new'},
    ]

    def get_parameters(self, have_version):
      return self.answers.pop(0)

  copy = copies._Copy('learner/0', Restarted())
  assert copy.get(-1) == {'version': 500, 'theta': b'old'}
  copy._asked = -float('inf')
  assert copy.get(500) == {'version': 500, 'theta': None}
  copy._asked = -float('inf')
  assert copy.get(500) == {'version': 3, 'theta': b'new'}
  assert not Restarted.answers


def test_who_waits_for_a_copy_does_not_ask_again(monkeypatch):
  monkeypatch.setattr(copies, '_FRESH_S', 60.0)

  class Slow:
    asked = 0

    def get_parameters(self, have_version):
      Slow.asked += 1
      goes_on.wait(10)
      raise rpc.Unavailable('learner/0', 'get_parameters', False, 'away')

  goes_on, found = threading.Event(), copies.Copies(lambda name: Slow())
  errors = []

  def ask_for_it():
    try:
      found.get('learner/0', 0)
    except rpc.Unavailable as e:
      errors.append(e)

  threads = [threading.Thread(target=ask_for_it) for _ in range(6)]
  for thread in threads:
    thread.start()
  while not Slow.asked:
    time.sleep(0.01)
  goes_on.set()
  for thread in threads:
    thread.join(10)
  assert len(errors) == 6
  assert Slow.asked == 1


def test_on_one_host_an_actor_asks_the_learner_itself(tmp_path):
  client = rpc.Client(directory.Name('learner/0', directory.Local(tmp_path)))
  assert rpc.near(client) is client
  plain = object()
  assert rpc.near(plain) is plain
