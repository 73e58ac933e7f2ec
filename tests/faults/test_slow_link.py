"""Frames through a slow link: sockets stand for the devices."""

import random
import socket
import subprocess
import sys
import time

import pytest

from tests.faults import slow_link


@pytest.fixture
def link():
  """Makes a link; gives its two ends, as a host and the others see them."""
  made = []

  def start(delay_s, loss):
    pairs = [
      socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in 'io'
    ]
    theirs = [pair[1].fileno() for pair in pairs]
    words = [*theirs, delay_s, loss]
    process = subprocess.Popen(
      [sys.executable, '-c', slow_link.COMMAND, *map(str, words)],
      pass_fds=theirs,
    )
    made.append((process, pairs))
    for pair in pairs:
      pair[1].close()
      pair[0].settimeout(60.0)
    return [pair[0] for pair in pairs]

  yield start
  for process, pairs in made:
    process.kill()
    process.wait()
    for pair in pairs:
      pair[0].close()


def test_what_a_host_sends_is_late_and_what_comes_to_it_is_not_lost(link):
  host, others = link(0.2, 0.0)
  others.send(b'to the host')
  assert host.recv(99) == b'to the host'
  began = time.monotonic()
  for number in range(20):
    host.send(b'%d' % number)
  assert [others.recv(99) for _ in range(20)] == [b'%d' % n for n in range(20)]
  assert time.monotonic() - began >= 0.2


def test_so_many_frames_are_lost(link):
  host, others = link(0.0, 0.3)
  chance = random.Random(0)
  kept = [b'%d' % n for n in range(200) if chance.random() >= 0.3]
  for number in range(200):
    host.send(b'%d' % number)
  assert [others.recv(99) for _ in kept] == kept
  # The other way each comes through.
  for number in range(30):
    others.send(b'%d' % number)
    assert host.recv(99) == b'%d' % number


@pytest.mark.parametrize('text', ['', '50', '50,100', '-1,0', 'x,1', '1,2,3'])
def test_what_is_no_weather_is_refused(text):
  with pytest.raises(ValueError, match='Give milliseconds and percent: 50,1'):
    slow_link.Weather.parse(text)


def test_a_weather():
  assert slow_link.Weather.parse('50,1') == slow_link.Weather(0.05, 0.01)
