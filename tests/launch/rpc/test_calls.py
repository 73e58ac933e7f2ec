"""Remote calls over real sockets: unix ones, and TLS between hosts."""

from concurrent import futures
import contextlib
import logging
import math
import os
import pickle
import resource
import socket
import ssl
import struct
import threading
import time

import hypothesis
from hypothesis import strategies
import launchpad as lp
import numpy as np
import psutil
import pytest

from murmuration.launch import rpc
from murmuration.launch.engines import prepare
from murmuration.launch.rpc import codec
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import tls
from tests import paced


class Service:
  serves = ('echo', 'fail', 'unspeakable', 'block', 'zeros')

  def __init__(self):
    self.calls = 0
    self.release = threading.Event()
    self.not_callable = 3

  def echo(self, x):
    self.calls += 1
    return x

  def fail(self):
    raise FileNotFoundError('no file \udcff')

  def unspeakable(self):
    return object()

  def block(self):
    self.calls += 1
    assert self.release.wait(60)
    return 'done'

  def zeros(self, count):
    return np.zeros(count, np.uint8)

  def run(self):
    raise AssertionError('must not be called')

  unlisted = _private = run


class Network(directory.Directory):
  """Of one server, at an address that other hosts reach."""

  def __init__(self, credentials, address):
    self._credentials, self._address = credentials, address

  @property
  def credentials(self):
    return self._credentials

  def claim(self, name, kind='rpc'):
    return self._address

  def find(self, name, timeout_s=None):
    return self._address


@pytest.fixture(scope='module')
def credentials():
  return tls.make()


@pytest.fixture
def address(tmp_path):
  return f'unix:{tmp_path}/server'


@pytest.fixture
def service(address):
  instance = Service()
  with rpc.serve(instance, address):
    yield instance
    instance.release.set()


@pytest.fixture
def connect(address):
  """connect() -> a bare socket to the server."""
  with contextlib.ExitStack() as stack:

    def make():
      connection = stack.enter_context(socket.socket(socket.AF_UNIX))
      connection.settimeout(60)
      connection.connect(address.removeprefix('unix:'))
      return connection

    yield make


@pytest.fixture
def far(credentials):
  """The address of a server that other hosts reach."""
  address = f'tls://127.0.0.1:{directory.pick_port(set())}'
  with rpc.serve(Service(), address, credentials):
    yield address


def client_of(address, credentials, timeout_s=60.0):
  name = directory.Name('server/0', Network(credentials, address))
  return rpc.Client(name, timeout_s)


def plain(address):
  host, port = address.removeprefix('tls://').split(':')
  return socket.create_connection((host, int(port)), 60)


def message(*args, method='echo'):
  return b''.join(codec.encode_parts([method, args, {}]))


def is_closed(connection):
  """Whether the other end closes it; waits for that."""
  try:
    return connection.recv(1) == b''
  except ConnectionError:
    return True


def until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


# --- Calls and answers -------------------------------------------------------


@pytest.mark.parametrize('size', [0, 1, 5_000, 70_000, 3_000_000])
def test_arrays_cross_in_both_directions(
  service, address, far, credentials, size
):
  array = np.random.default_rng(0).integers(0, 255, size, np.uint8)
  for client in (rpc.Client(address), client_of(far, credentials)):
    got = client.echo({'x': (array, [array[::2]])})['x']
    np.testing.assert_array_equal(got[0], array)
    np.testing.assert_array_equal(got[1][0], array[::2])


def test_an_error_of_the_server_comes_back_with_its_traceback(service, address):
  with pytest.raises(rpc.RemoteError) as caught:
    rpc.Client(address).fail()
  error = caught.value
  # Half a character does not keep an error from its caller.
  assert error.type_name == 'FileNotFoundError' and 'no file' in error.message
  assert 'in fail' in error.remote_traceback and 'in fail' in str(error)
  assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_cannot_cross_is_an_error_at_its_end(service, address):
  client = rpc.Client(address)
  with pytest.raises(TypeError):
    client.echo(object())
  assert service.calls == 0
  with pytest.raises(rpc.RemoteError, match='TypeError'):
    client.unspeakable()
  assert client.echo(1) == 1


def test_only_listed_methods_are_served_and_the_nearest_is_named(
  service, address
):
  client = rpc.Client(address)
  with pytest.raises(rpc.RemoteError, match='echo'):
    client.ecko()
  for method in ('unlisted', 'run', '_private', 'not_callable', '__init__'):
    with pytest.raises(rpc.RemoteError, match='does not serve'):
      client._call(method)


@pytest.mark.parametrize('names', [['_private'], ['run'], ['nothing']])
def test_what_is_listed_but_cannot_be_served_is_named(names, address):
  instance = Service()
  instance.serves = names
  with pytest.raises(TypeError, match=names[0]):
    with rpc.serve(instance, address):
      pass


def test_many_threads_share_a_client(service, address):
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(8) as pool:
    results = list(pool.map(lambda i: client.echo(np.full(10, i)), range(200)))
  assert [int(array[0]) for array in results] == list(range(200))


def test_a_client_can_be_pickled(service, address):
  client = pickle.loads(pickle.dumps(rpc.Client(address, timeout_s=2.5)))
  assert (client.address, client.timeout_s) == (address, 2.5)
  assert client.echo(1) == 1


def test_a_handle_becomes_a_client_with_the_deadline_of_its_node(tmp_path):
  program = lp.Program('test')
  with program.group('server'):
    handle = program.add_node(rpc.Node(Service, timeout_s=3.0))
  prepare.prepare(program, directory.Local(tmp_path), lp.stop)
  client = handle.dereference()
  assert (client.address, client.timeout_s) == ('server/0', 3.0)


# --- Deadlines ---------------------------------------------------------------


def test_a_deadline_is_needed():
  for timeout_s in (0, math.nan, math.inf, 1e300):  # no clock waits so long
    with pytest.raises(ValueError, match='timeout_s'):
      rpc.Client('unix:/nowhere', timeout_s=timeout_s)


def test_a_call_to_nobody_ends_at_the_deadline(address):
  start = time.monotonic()
  with pytest.raises(rpc.Unavailable) as caught:
    rpc.Client(address, timeout_s=0.3).echo(1)
  assert 0.2 < time.monotonic() - start < 20
  assert not caught.value.delivered
  assert address in str(caught.value) and 'echo' in str(caught.value)


def test_a_call_that_is_not_answered_ends_at_the_deadline(service, address):
  client = rpc.Client(address, timeout_s=60.0)
  client.echo(1)
  start = time.monotonic()
  with pytest.raises(rpc.Unavailable) as caught:
    client.with_deadline(0.2).block()
  assert 0.15 < time.monotonic() - start < 20
  assert caught.value.delivered
  assert client.echo(1) == 1


def test_who_listens_and_says_nothing_is_waited_for_until_the_deadline(address):
  with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(address.removeprefix('unix:'))
    listener.listen()
    with pytest.raises(rpc.Unavailable):
      rpc.Client(address, timeout_s=0.3).echo(1)


def test_an_answer_on_its_way_may_be_later_than_the_deadline(service, address):
  with paced.link(address, 0.1) as slow:  # 2 MB in three seconds
    client = rpc.Client(slow, timeout_s=2.0)
    start = time.monotonic()
    assert client.zeros(2_000_000).shape == (2_000_000,)
    assert time.monotonic() - start > 2.0
    assert client.echo(1) == 1  # over the same connection


@pytest.mark.long
def test_an_answer_that_stops_midway_is_given_up(service, address):
  with paced.link(address, 0.0, most_bytes=100_000) as slow:
    with pytest.raises(rpc.Unavailable, match='no whole answer') as caught:
      rpc.Client(slow, timeout_s=2.0).zeros(2_000_000)
    assert caught.value.delivered


# --- Servers that come and go ------------------------------------------------


def test_a_call_waits_for_a_server_that_comes_up(address):
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(1) as pool:
    call = pool.submit(client.echo, 5)
    time.sleep(0.3)
    assert not call.done()
    with rpc.serve(Service(), address):
      assert call.result() == 5


def test_a_server_that_was_started_again_is_found_at_once(address, credentials):
  far = f'tls://127.0.0.1:{directory.pick_port(set())}'
  for where, client in (
    (address, rpc.Client(address, timeout_s=60.0)),
    (far, client_of(far, credentials)),
  ):
    for i in range(3):
      with rpc.serve(Service(), where, credentials):
        assert client.echo(i) == i
    with pytest.raises(rpc.Unavailable):
      client.with_deadline(0.1).echo(1)


def test_a_call_whose_server_ends_is_not_made_twice(address):
  first, second = Service(), Service()
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(1) as pool:
    with rpc.serve(first, address):
      call = pool.submit(client.block)
      until(lambda: first.calls)
    with rpc.serve(second, address):  # though the first has not returned
      with pytest.raises(rpc.Unavailable) as caught:
        call.result()
    first.release.set()
  assert caught.value.delivered
  assert (first.calls, second.calls) == (1, 0)


def test_a_call_under_way_is_answered_before_the_server_ends(address):
  instance = Service()
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(1) as pool:
    with rpc.serve(instance, address):
      call = pool.submit(client.block)
      until(lambda: instance.calls)
      instance.release.set()
    assert call.result() == 'done'


def test_an_address_in_use_is_named_and_the_rest_of_a_dead_server_is_not(
  service, address, far, credentials
):
  for where in (address, far):
    with pytest.raises(OSError, match=f'{where}.*Another process'):
      with rpc.serve(Service(), where, credentials):
        pass
  assert rpc.Client(address).echo(1) == 1
  with socket.socket(socket.AF_UNIX) as killed:
    killed.bind(f'{address[5:]}-2')
  with rpc.serve(Service(), f'{address}-2'):
    assert rpc.Client(f'{address}-2').echo(1) == 1


def test_a_path_may_be_longer_than_the_kernel_takes(tmp_path):
  place = tmp_path / ('long' * 30)
  place.mkdir()
  address = f'unix:{place}/server'
  for _ in range(2):
    with rpc.serve(Service(), address):
      assert rpc.Client(address).echo(1) == 1


def test_what_a_server_held_goes_with_it(address, tmp_path):
  before = psutil.Process().num_fds(), threading.active_count()
  client = rpc.Client(address, timeout_s=60.0)
  for _ in range(3):
    with rpc.serve(Service(), address):
      client.echo(np.zeros(1000))
  del client
  until(lambda: psutil.Process().num_fds() <= before[0])
  until(lambda: threading.active_count() <= before[1])
  assert not list(tmp_path.iterdir())


# --- Calls together, and again -----------------------------------------------


def test_calls_together_are_all_sent_before_an_answer_is_awaited(tmp_path):
  class Meets:
    serves = ('meet',)

    def meet(self, x):
      barrier.wait(60)
      return 2 * x

  barrier = threading.Barrier(3)
  with contextlib.ExitStack() as stack:
    clients = []
    for i in range(3):
      address = f'unix:{tmp_path}/{i}'
      stack.enter_context(rpc.serve(Meets(), address))
      clients.append(rpc.Client(address, timeout_s=60.0))
    for _ in range(2):  # over new connections, and over those that are there
      found = rpc.together([(c, 'meet', (i,)) for i, c in enumerate(clients)])
      assert found == [0, 2, 4]


def test_of_calls_together_each_has_its_own_end(service, address, tmp_path):
  client = rpc.Client(address, timeout_s=1.0)
  client.echo(1)  # connects: it is sent first, and its deadline passes
  away = rpc.Client(f'unix:{tmp_path}/nobody', timeout_s=1.5)
  lost, failed, here, found = rpc.together(
    [
      (away, 'echo', (1,)),
      (client, 'fail', ()),
      (Service(), 'echo', (3,)),  # what stands for a client is called
      (client, 'zeros', (500_000,)),
    ]
  )
  assert isinstance(lost, rpc.Unavailable) and not lost.delivered
  assert isinstance(failed, rpc.RemoteError)
  assert here == 3
  assert found.shape == (500_000,)


def test_servers_that_hang_are_waited_for_at_the_same_time(tmp_path):
  with contextlib.ExitStack() as stack:
    calls = []
    for i in range(12):
      listener = stack.enter_context(socket.socket(socket.AF_UNIX))
      listener.bind(f'{tmp_path}/{i}')
      listener.listen()
      client = rpc.Client(f'unix:{tmp_path}/{i}', timeout_s=2.0)
      calls.append((client, 'get', ()))
    begin = time.monotonic()
    found = rpc.together(calls)
  assert all(isinstance(one, rpc.Unavailable) for one in found)
  assert time.monotonic() - begin < 15  # and not 12 x 2


def unavailable():
  raise rpc.Unavailable('somewhere', 'method', False, 'away')


def test_retry_goes_on_until_the_server_is_there():
  tries = []

  def third_time():
    tries.append(time.monotonic())
    if len(tries) < 3:
      unavailable()
    return 'here'

  assert rpc.retry(third_time, 60.0) == 'here'
  # At least: a busy machine makes them longer.
  assert tries[1] - tries[0] > 0.07 and tries[2] - tries[1] > 0.15


def test_retry_ends_in_time_when_told_to_and_with_other_errors():
  start = time.monotonic()
  with pytest.raises(rpc.Unavailable, match='gave up'):
    rpc.retry(unavailable, 0.3)
  assert time.monotonic() - start > 0.25
  with pytest.raises(rpc.Unavailable):
    rpc.retry(unavailable, math.inf, should_stop=lambda: True)
  with pytest.raises(KeyError):
    rpc.retry(lambda: {}['x'])


# --- Peers that are broken, slow, many, or not ours ---------------------------


@pytest.mark.parametrize('size', [1, 15, 16, 40, -1])
def test_half_a_message_calls_nothing(service, connect, address, size):
  connection = connect()
  connection.sendall(message(np.zeros(99))[:size])
  connection.close()
  assert rpc.Client(address).echo(1) == 1
  assert service.calls == 1


def test_a_message_in_single_bytes_is_a_message(service, connect):
  connection = connect()
  for byte in message(5):
    connection.sendall(bytes([byte]))
  assert codec.decode(connection.recv(1000)) == [0, 5]


@pytest.mark.parametrize(
  'head',
  [
    b'GET / HTTP/1.1\r\n\r\n',
    struct.pack('<4sIQ', b'MUR3', 10, 1 << 40),
    struct.pack('<4sIQ', b'MUR3', 10, 20),
    b''.join(codec.encode_parts('no call')),
    message(1) + message(2),
  ],
  ids=['http', 'too long', 'too short', 'no call', 'two at once'],
)
def test_what_is_no_call_is_refused_and_said_once(
  service, connect, address, head, caplog
):
  for _ in range(20):
    connection = connect()
    connection.sendall(head)
    assert is_closed(connection)
  said = [r for r in caplog.records if 'refused' in r.getMessage()]
  assert len(said) == 1 and address in said[0].getMessage()
  assert rpc.Client(address).echo(1) == 1


def test_random_bytes_are_refused_and_nothing_is_held(service, connect, caplog):
  before = psutil.Process().num_fds(), threading.active_count()
  good = message(np.arange(5), {'a': [1, 'b']})
  changed = strategies.tuples(
    strategies.integers(0, len(good) - 1), strategies.binary(min_size=1)
  ).map(lambda at: good[: at[0]] + at[1] + good[at[0] + len(at[1]) :])

  @hypothesis.settings(max_examples=200, deadline=None)
  @hypothesis.given(changed | strategies.binary())
  def check(sent):
    with connect() as connection, contextlib.suppress(ConnectionError):
      connection.sendall(sent)
      connection.shutdown(socket.SHUT_WR)
      # An answer, if it is a message, and the end.
      while connection.recv(1 << 16):
        pass

  check()
  until(lambda: psutil.Process().num_fds() <= before[0])
  until(lambda: threading.active_count() <= before[1])
  assert sum(r.levelno >= logging.WARNING for r in caplog.records) <= 4


def test_a_claimed_length_takes_no_memory(service, connect, address):
  process = psutil.Process()
  before = process.memory_info().rss
  for _ in range(8):
    connect().sendall(struct.pack('<4sIQ', b'MUR3', 10, codec.MAX_BYTES))
  assert rpc.Client(address).echo(1) == 1
  assert process.memory_info().rss - before < 200e6


def test_slow_peers_keep_nobody_waiting(service, connect, address):
  for size in (1, 8, 20, 1000):
    for _ in range(5):
      connect().sendall(message(np.zeros(999))[:size])
  for _ in range(5):  # They ask for much and do not read it.
    connect().sendall(message(5_000_000, method='zeros'))
  client = rpc.Client(address, timeout_s=60.0)
  assert [client.echo(i) for i in range(50)] == list(range(50))


def test_a_server_has_room_for_a_thousand_connections(
  service, connect, address
):
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  most = max(4096, limits[0]), max(4096, limits[1])
  resource.setrlimit(resource.RLIMIT_NOFILE, most)
  try:
    before = threading.active_count()
    connections = [connect() for _ in range(1000)]
    for i, connection in enumerate(connections):
      connection.sendall(message(i))
    for i, connection in enumerate(connections):
      assert codec.decode(connection.recv(1000)) == [0, i]
    assert rpc.Client(address).echo(1) == 1
    for connection in connections:
      connection.close()
    until(lambda: threading.active_count() <= before + 1)
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_calls_of_another_user_are_refused(
  service, connect, address, monkeypatch
):
  user = os.geteuid()
  monkeypatch.setattr(os, 'geteuid', lambda: user + 1)
  connection = connect()
  with contextlib.suppress(ConnectionError):
    connection.sendall(message(1))
  assert is_closed(connection)
  with pytest.raises(rpc.Unavailable, match=f'user {user} is not'):
    rpc.Client(address, timeout_s=0.2).echo(1)
  assert not service.calls


# --- Between hosts -----------------------------------------------------------


@pytest.mark.parametrize('certified', [True, False])
def test_another_run_is_refused_by_both_ends(far, credentials, certified):
  with pytest.raises(rpc.Unavailable):
    client_of(far, tls.make(), 0.5).echo(1)
  # Also if it does not care who the server is.
  careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  if certified:
    careless = tls.make().client_context()
  careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
  with careless.wrap_socket(plain(far)) as connection:
    # In TLS 1.3 a client learns of the refusal after its handshake.
    with contextlib.suppress(ssl.SSLError, ConnectionError):
      connection.sendall(message(1))
      assert connection.recv(1) == b''
  assert client_of(far, credentials).echo(1) == 1


def test_strangers_keep_nobody_of_the_run_out(far, credentials):
  with contextlib.ExitStack() as stack:
    silent = [stack.enter_context(plain(far)) for _ in range(200)]
    with contextlib.suppress(ConnectionError):
      silent[-1].sendall(b'GET / HTTP/1.1\r\n\r\n')
    begin = time.monotonic()
    assert client_of(far, credentials).echo(1) == 1
    assert is_closed(silent[0])  # for others, which came after it
    assert time.monotonic() - begin < 60


def test_a_server_may_have_both_addresses_and_one_of_ipv6(address, credentials):
  try:
    host = '[::1]'
    socket.create_server(('::1', 0), family=socket.AF_INET6).close()
  except OSError:
    host = '127.0.0.1'  # a machine without IPv6
  far = f'tls://{host}:{directory.pick_port(set())}'
  with rpc.serve(Service(), f'{address} {far}', credentials):
    assert rpc.Client(address).echo(1) == 1
    assert client_of(far, credentials).echo(2) == 2


def test_an_address_that_others_reach_needs_certificates(far):
  with pytest.raises(ValueError, match='certificates'):
    with rpc.serve(Service(), far):
      pass
  with pytest.raises(ValueError, match='certificates'):
    rpc.Client(far, timeout_s=1.0).echo(1)
  with pytest.raises(ValueError, match='unix:PATH'):
    rpc.Client('localhost:8000').echo(1)


def test_the_key_is_not_printed(credentials):
  assert 'PRIVATE' in credentials.key
  assert credentials.key not in repr(credentials)
