"""launch/rpc against peers that are broken, slow, many, or not ours."""

from concurrent import futures
import contextlib
import logging
import os
import resource
import socket
import struct
import threading
import time
import tracemalloc

import hypothesis
from hypothesis import strategies
import numpy as np
import psutil
import pytest

from murmuration.launch import rpc
from murmuration.launch.rpc import codec
from murmuration.launch.rpc import connection as connection_lib
from murmuration.launch.rpc import serving
from murmuration.launch.rpc import sockets


class Service:
  serves = ('echo', 'block', 'zeros')

  def __init__(self):
    self.calls = 0
    self.release = threading.Event()

  def echo(self, x):
    self.calls += 1
    return x

  def block(self):
    self.calls += 1
    self.release.wait(60)

  def zeros(self, size):
    return np.zeros(size, np.uint8)


@pytest.fixture
def address(tmp_path):
  return f'unix:{tmp_path}/server'


@pytest.fixture
def serve(address):
  """serve(threads) -> the service, at `address`."""
  with contextlib.ExitStack() as stack:

    def start(threads=4):
      service = Service()
      stack.enter_context(rpc.serve(service, address, threads))
      stack.callback(service.release.set)
      return service

    yield start


@pytest.fixture
def connect(address):
  """connect() -> a bare socket, connected."""
  with contextlib.ExitStack() as stack:

    def make():
      return stack.enter_context(sockets.connect(address, 60.0))

    yield make


def call(*args, method='echo'):
  return b''.join(codec.encode_parts((method, args, {})))


def held():
  """Descriptors and threads of this process."""
  return psutil.Process().num_fds(), threading.active_count()


def accepted(address):
  """How many connections the server at an address holds, in this process."""
  path = address.removeprefix('unix:')
  connections = psutil.Process().net_connections('unix')
  return sum(c.laddr == path for c in connections) - 1  # the listener


def until(condition, what):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline, what
    time.sleep(0.01)


def is_closed(connection):
  """Whether the other end has closed it; waits for that."""
  try:
    return connection.recv(1) == b''
  except ConnectionError:
    return True


@pytest.mark.parametrize('size', [1, 15, 16, 40, -1])
def test_half_a_message_calls_nothing_and_leaves_nothing(
  serve, connect, address, size
):
  service = serve()
  connection = connect()
  connection.sendall(call(np.zeros(99))[:size])
  until(lambda: accepted(address) == 1, 'it is not accepted')
  connection.close()
  until(lambda: accepted(address) == 0, 'the server still holds it')
  assert rpc.Client(address).echo(1) == 1
  assert service.calls == 1


def test_a_message_in_single_bytes_is_a_message(serve, connect):
  serve()
  connection = connect()
  for byte in call(5):
    connection.sendall(bytes([byte]))
  assert codec.decode(connection.recv(1000)) == [0, 5]


@pytest.mark.parametrize(
  'head',
  [
    b'GET / HTTP/1.1\r\n\r\n',
    struct.pack('<4sIQ', b'MUR2', 10, 1 << 40),
    struct.pack('<4sIQ', b'MUR2', 10, 20),
    struct.pack('<4sIQ', b'MUR2', 1 << 31, 1 << 20),
    call(1) + call(2),
  ],
  ids=['http', 'too long', 'too short', 'structure', 'two at once'],
)
def test_what_is_no_message_is_refused_and_said_once(
  serve, connect, address, head, caplog
):
  serve()
  for _ in range(20):
    connection = connect()
    connection.sendall(head)
    assert is_closed(connection)
  said = [r for r in caplog.records if 'refused' in r.getMessage()]
  assert len(said) == 1 and address in said[0].getMessage()
  assert rpc.Client(address).echo(1) == 1


def test_a_claimed_length_takes_no_memory(serve, connect, address):
  serve()
  process = psutil.Process()
  before = process.memory_info().rss
  for _ in range(8):
    connect().sendall(struct.pack('<4sIQ', b'MUR2', 10, codec.MAX_BYTES))
  assert rpc.Client(address).echo(1) == 1
  assert process.memory_info().rss - before < 200e6


def test_claims_inside_a_message_take_no_memory():
  message = call(np.zeros((0, 2**31 - 1)))
  assert codec.decode(message)[1][0].size == 0
  assert message.count(b'\x92\x00\xce') == 1
  # The shape becomes [1, 2**31 - 1].
  claims = message.replace(b'\x92\x00\xce', b'\x92\x01\xce')
  tracemalloc.start()
  try:
    with pytest.raises(ValueError, match='not a whole message'):
      codec.decode(claims)
    assert tracemalloc.get_traced_memory()[1] < 1e6
  finally:
    tracemalloc.stop()


def test_slow_peers_hold_no_thread(serve, connect, address):
  service = serve(threads=1)
  for size in (1, 8, 20, 1000):
    for _ in range(10):
      connect().sendall(call(np.zeros(999))[:size])
  for _ in range(5):  # They ask for much and do not read it.
    connect().sendall(call(5_000_000, method='zeros'))
  client = rpc.Client(address, timeout_s=60.0)
  assert [client.echo(i) for i in range(50)] == list(range(50))
  assert service.calls == 50


def test_peers_that_stay_slow_are_ended(
  serve, connect, address, monkeypatch, caplog
):
  monkeypatch.setattr(connection_lib, '_GRACE_S', 0.1)
  monkeypatch.setattr(connection_lib, '_LEAST_BYTES_PER_S', 1e9)
  monkeypatch.setattr(serving, '_LOOK_S', 0.1)
  serve()
  idle = connect()
  slow = [connect() for _ in range(5)]
  until(lambda: accepted(address) == 6, 'they are not accepted')
  for connection in slow[:4]:
    connection.sendall(call(np.zeros(999))[:50])
  slow[4].sendall(call(5_000_000, method='zeros'))
  until(lambda: accepted(address) == 1, 'they are not ended')
  got = 0
  while data := slow[4].recv(1 << 20):
    got += len(data)
  assert 0 < got < 5_000_000
  # One that is only idle is left alone, and a good one is served.
  idle.sendall(call(3))
  assert codec.decode(idle.recv(1000)) == [0, 3]
  assert caplog.text.count('too slow') == 1


def test_a_slow_reader_gets_all_of_it(serve, connect):
  serve(threads=1)
  connection = connect()
  connection.sendall(call(1_000_000, method='zeros'))
  got = bytearray()
  size = None
  while size is None or len(got) < size:
    time.sleep(0.001)
    got += connection.recv(50_000)
    size = size or codec.message_size(got)
  status, result = codec.decode(bytes(got))
  assert status == 0 and result.shape == (1_000_000,)


def test_a_thousand_connections_cost_no_threads(serve, connect, address):
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(
    resource.RLIMIT_NOFILE, (max(4096, limits[0]), max(4096, limits[1]))
  )
  try:
    serve(threads=4)
    client = rpc.Client(address)
    client.echo(0)
    threads = threading.active_count()
    connections = [connect() for _ in range(1000)]
    for i, connection in enumerate(connections):
      connection.sendall(call(i))
    for i, connection in enumerate(connections):
      assert codec.decode(connection.recv(1000)) == [0, i]
    assert threading.active_count() <= threads + 4
    assert client.echo(1) == 1
    for connection in connections:
      connection.close()
    until(lambda: accepted(address) == 1, 'connections are still held')
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connections_take_no_more_than_half_of_the_descriptors(
  serve, connect, address, monkeypatch, caplog
):
  monkeypatch.setattr(resource, 'getrlimit', lambda which: (20, 20))
  serve()
  kept = [connect() for _ in range(10)]
  for i, connection in enumerate(kept):
    connection.sendall(call(i))
    assert codec.decode(connection.recv(1000)) == [0, i]
  for _ in range(5):
    assert is_closed(connect())
  assert caplog.text.count('refused a connection: there are 10') == 1
  with pytest.raises(rpc.Unavailable) as caught:
    rpc.Client(address, timeout_s=0.3).echo(1)
  kept.pop().close()
  client = rpc.Client(address)
  assert rpc.retry(lambda: client.echo(1)) == 1
  assert isinstance(caught.value, ConnectionError)


def test_calls_of_another_user_are_refused(
  serve, address, monkeypatch, tmp_path, caplog
):
  service = serve()
  user = os.geteuid()
  monkeypatch.setattr(os, 'geteuid', lambda: user + 1)
  for _ in range(3):
    with socket.socket(socket.AF_UNIX) as connection:
      connection.connect(f'{tmp_path}/server')
      with contextlib.suppress(ConnectionError):
        connection.sendall(call(1))
      assert is_closed(connection)
  assert caplog.text.count(f'user {user} is not {user + 1}') == 1
  with pytest.raises(rpc.Unavailable, match='is not'):
    rpc.Client(address, timeout_s=0.2).echo(1)
  assert not service.calls


def test_random_bytes_are_refused_and_nothing_is_held(serve, address, caplog):
  serve()
  client = rpc.Client(address)
  assert client.echo(0) == 0
  before = threading.active_count()
  good = call(np.arange(5), {'a': [1, 'b']})
  changed = strategies.tuples(
    strategies.integers(0, len(good) - 1), strategies.binary(min_size=1)
  ).map(lambda at: good[: at[0]] + at[1] + good[at[0] + len(at[1]) :])
  garbage = changed | strategies.binary() | strategies.binary().map(
    lambda tail: good[:16] + tail
  )  # fmt: skip

  @hypothesis.settings(max_examples=200, deadline=None)
  @hypothesis.given(garbage)
  def check(message):
    with sockets.connect(address, 60.0) as connection:
      with contextlib.suppress(ConnectionError):
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
      # Its answer, if it is a message, and the end.
      with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
          pass

  check()
  assert client.echo(1) == 1
  until(lambda: accepted(address) == 1, 'connections are still held')
  assert threading.active_count() <= before + 3
  warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
  assert len(warnings) <= 4 and len({r.getMessage() for r in warnings}) == len(
    warnings
  )


def test_no_more_calls_at_a_time_than_were_said(serve, address):
  service = serve(threads=2)
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(3) as pool:
    blocked = [pool.submit(client.block) for _ in range(2)]
    until(lambda: service.calls == 2, 'they are not under way')
    third = pool.submit(client.echo, 3)
    time.sleep(0.2)
    assert not third.done() and service.calls == 2
    service.release.set()
    assert third.result() == 3
    assert [call.result() for call in blocked] == [None, None]


def test_one_caller_costs_two_threads_at_most(serve, address):
  before = threading.active_count()
  serve(threads=16)
  client = rpc.Client(address)
  for i in range(100):
    client.echo(i)
  assert threading.active_count() <= before + 2


def test_without_room_for_threads_calls_are_answered_one_by_one(
  serve, address, monkeypatch, caplog
):
  serve(threads=16)

  def no_room(thread):
    raise RuntimeError("can't start new thread")

  with monkeypatch.context() as patch:
    patch.setattr(threading.Thread, 'start', no_room)
    client = rpc.Client(address)
    assert [client.echo(i) for i in range(3)] == [0, 1, 2]
  assert caplog.text.count("can't start new thread") == 1
  assert client.echo(4) == 4


def test_an_error_of_one_connection_ends_it_alone(
  serve, address, monkeypatch, caplog
):
  serve(threads=2)
  client = rpc.Client(address, timeout_s=60.0)
  with monkeypatch.context() as patch:

    def fail(connection, parts):
      raise MemoryError('no room')

    patch.setattr(connection_lib.Connection, 'answer', fail)
    for _ in range(4):
      with pytest.raises(rpc.Unavailable, match='connection lost'):
        client.echo(1)
  assert client.echo(2) == 2
  assert caplog.text.count('MemoryError: no room') == 1


def test_a_connection_that_cannot_be_watched_is_refused(
  serve, connect, address, monkeypatch, caplog
):
  serve(threads=1)
  made = connection_lib.Connection
  number = iter([0])

  class Unwatched(made):
    def __init__(self, accepted):
      super().__init__(accepted)
      if next(number, None) is not None:
        self.fileno = lambda: 99_999

  monkeypatch.setattr(connection_lib, 'Connection', Unwatched)
  assert is_closed(connect())
  assert 'refused a connection' in caplog.text
  assert rpc.Client(address).echo(1) == 1


def test_what_a_server_held_goes_with_it(address, tmp_path):
  before = held()
  client = rpc.Client(address)
  for _ in range(3):
    with rpc.serve(Service(), address):
      rpc.retry(lambda: client.echo(np.zeros(1000)))
  client = None
  # At most: what an earlier test left may go meanwhile.
  until(
    lambda: all(now <= then for now, then in zip(held(), before)),
    'something is still held',
  )
  assert not list(tmp_path.iterdir())


def test_a_path_may_be_longer_than_the_kernel_takes(tmp_path):
  directory = tmp_path / ('long' * 30)
  directory.mkdir()
  address = f'unix:{directory}/server'
  for _ in range(2):
    with rpc.serve(Service(), address):
      assert rpc.Client(address).echo(1) == 1
  sockets.listen(address).close()
  with rpc.serve(Service(), address):  # What a killed server left is replaced.
    assert rpc.Client(address).echo(2) == 2
