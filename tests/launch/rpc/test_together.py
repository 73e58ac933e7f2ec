"""Calls that are made at the same time, over real sockets."""

import contextlib
import socket
import threading
import time
import types

import numpy as np
import pytest

from murmuration.launch import rpc
from murmuration.launch.rpc import client as client_lib


class Meets:
  """Answers once as many have come as `barrier` waits for."""

  serves = ('meet', 'fail')

  def __init__(self, barrier):
    self._barrier = barrier

  def meet(self, x):
    self._barrier.wait(60)
    return 2 * x

  def fail(self, x):
    raise KeyError(x)


@pytest.fixture
def make_clients(tmp_path):
  """make_clients(count): of servers that answer only together."""
  with contextlib.ExitStack() as stack:

    def make(count):
      barrier, found = threading.Barrier(count), []
      for i in range(count):
        address = f'unix:{tmp_path}/{i}'
        stack.enter_context(rpc.serve(Meets(barrier), address))
        found.append(rpc.Client(address, timeout_s=60.0))
      return found

    yield make


def test_all_are_sent_before_an_answer_is_awaited(make_clients):
  clients = make_clients(3)
  for _ in range(2):  # over new connections, and over those that are there
    found = rpc.together([(c, 'meet', (i,)) for i, c in enumerate(clients)])
    assert found == [0, 2, 4]


def test_what_fails_stands_in_its_place(make_clients, tmp_path):
  (client,) = make_clients(1)
  away = rpc.Client(f'unix:{tmp_path}/nobody', timeout_s=0.1)
  lost, failed, found = rpc.together(
    [(away, 'meet', (1,)), (client, 'fail', ('x',)), (client, 'meet', (4,))]
  )
  assert isinstance(lost, rpc.Unavailable) and not lost.delivered
  assert isinstance(failed, rpc.RemoteError)
  assert found == 8


def test_a_long_answer_is_read_though_another_server_was_waited_for(tmp_path):
  class Long:
    serves = ('get',)

    def get(self):
      return np.zeros(100_000)

  with rpc.serve(Long(), f'unix:{tmp_path}/long'):
    client = rpc.Client(f'unix:{tmp_path}/long', timeout_s=1.0)
    away = rpc.Client(f'unix:{tmp_path}/nobody', timeout_s=1.5)
    client.get()  # connects: it is sent first, and its deadline passes
    lost, found = rpc.together([(away, 'get', ()), (client, 'get', ())])
  assert isinstance(lost, rpc.Unavailable)
  assert found.shape == (100_000,)


def test_servers_that_are_away_are_not_waited_for_one_after_the_other(
  monkeypatch,
):
  now = [1000.0]
  clock = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(client_lib, 'time', clock)

  def connect(client, method, deadline):
    now[0] = max(now[0], deadline)
    raise rpc.Unavailable(client.address, method, False, 'nothing listens')

  monkeypatch.setattr(rpc.Client, '_connect', connect)
  away = [rpc.Client(f'unix:/nowhere/{i}', timeout_s=5.0) for i in range(4)]
  found = rpc.together([(client, 'get', ()) for client in away])
  assert all(isinstance(one, rpc.Unavailable) for one in found)
  # 5 s in all, and one trial of each that comes after them.
  assert now[0] - 1000 == 5 + 3 * client_lib._CONNECT_TIMEOUT_S


def test_what_stands_for_a_client_is_called(make_clients):
  class Stand:
    def meet(self, x):
      return x

    def fail(self, x):
      raise rpc.Unavailable('nowhere', 'fail', False, 'nothing listens')

  (client,) = make_clients(1)
  calls = [
    (Stand(), 'meet', (3,)),
    (client, 'meet', (2,)),
    (Stand(), 'fail', '1'),
  ]
  one, two, three = rpc.together(calls)
  assert (one, two) == (3, 4)
  assert isinstance(three, rpc.Unavailable)


def test_servers_that_hang_are_not_waited_for_one_after_the_other(tmp_path):
  calls, listeners = [], []
  for i in range(8):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f'{tmp_path}/{i}')
    listener.listen()
    listeners.append(listener)
    calls.append((rpc.Client(f'unix:{tmp_path}/{i}', timeout_s=2.0), 'get', ()))
  begin = time.monotonic()
  found = rpc.together(calls)
  took_s = time.monotonic() - begin
  for listener in listeners:
    listener.close()
  assert all(isinstance(one, rpc.Unavailable) for one in found)
  assert took_s < 8  # and not 8 x 2
