"""No wait for a server is silent, and none is without an end."""

import logging
import threading

import numpy as np
import pytest

from launch import rpc
from launch.services.inference import remote

TRANSPORTS = ('shared_memory', 'rpc')
ENVS = 4


@pytest.fixture
def said(monkeypatch):
  """said.wait(s): whether somebody said that he waits, after half a second."""
  monkeypatch.setattr(remote, 'SAY_S', 0.5)
  event = threading.Event()

  class Handler(logging.Handler):
    def emit(self, record):
      event.set()

  handler = Handler()
  logging.getLogger(remote.__name__).addHandler(handler)
  yield event
  logging.getLogger(remote.__name__).removeHandler(handler)


def _observation(seed):
  return np.random.default_rng(seed).standard_normal((ENVS, 4), np.float32)


def test_a_wait_says_so_ever_more_seldom_and_ends(caplog):
  now = [100.0]
  wait = remote.Wait(100.0, clock=lambda: now[0])
  found = []
  with pytest.raises(remote.NoAnswer, match='after 100 s. The reason'):
    while True:
      before = len(caplog.messages)
      wait.go_on(lambda: 'The reason.')
      if len(caplog.messages) > before:
        found.append(now[0] - 100.0)
      now[0] += 1.0
  assert found == [15.0, 30.0, 60.0]
  assert caplog.messages[0] == 'Still waiting, for 15 s so far. The reason.'


@pytest.mark.long
@pytest.mark.parametrize('transport', TRANSPORTS)
def test_a_stopped_server_is_waited_for_aloud_and_then_given_up(
  apart, transport, said, caplog
):
  del said
  policy = apart.policy(transport, patience_s=3.0)
  policy.start()
  policy.act(None, _observation(0), 0, None)
  apart.stop()
  with pytest.raises(remote.NoAnswer) as error:
    policy.act(None, _observation(1), 0, None)
  # What is said while it waits is what it fails with.
  for text in (str(error.value), caplog.text):
    assert f'server at {apart.address} has not answered request 1,' in text
    assert 'nor a call' in text and 'Its process is stopped' in text
  assert 'Still waiting' in caplog.text


@pytest.mark.long
@pytest.mark.parametrize('transport', TRANSPORTS)
def test_a_server_that_goes_on_has_lost_nothing(apart, transport, said):
  policy = apart.policy(transport, patience_s=60.0)
  policy.start()
  acted = [policy.act(None, _observation(0), 0, None)]
  apart.stop()

  def act():
    acted.append(policy.act(None, _observation(1), 0, None))

  thread = threading.Thread(target=act, daemon=True)
  thread.start()
  assert said.wait(60) and len(acted) == 1
  apart.go_on()
  thread.join(60)
  assert not thread.is_alive()
  acted.append(policy.act(None, _observation(2), 0, None))
  # A run that was not disturbed; a request made twice would show.
  again = apart.policy(transport, patience_s=60.0)
  again.start()
  for t, actions in enumerate(acted):
    np.testing.assert_array_equal(
      again.act(None, _observation(t), 0, None), actions
    )
  np.testing.assert_array_equal(again.core, policy.core)


@pytest.mark.long
def test_an_actor_that_comes_to_a_stopped_server_says_so_and_gives_up(
  apart, said, caplog
):
  del said
  policy = apart.policy('auto', patience_s=4.0)
  apart.stop()
  with pytest.raises(rpc.Unavailable, match='gave up after'):
    policy.start()
  assert 'where() at' in caplog.text
