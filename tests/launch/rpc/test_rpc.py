"""launch/rpc over real sockets, in this process."""

from concurrent import futures
import contextlib
import math
import pickle
import socket
import threading
import time

import launchpad as lp
import numpy as np
import pytest

from murmuration.launch import rpc
from murmuration.launch.engines import prepare
from murmuration.launch.rpc import channel
from murmuration.launch.rpc import client as client_lib
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import sockets
from tests import paced


class Service:
  serves = (
    'echo',
    'fail',
    'fail_on_half_a_character',
    'unspeakable',
    'block',
    'zeros',
  )

  def __init__(self):
    self.calls = 0
    self.release = threading.Event()
    self.not_callable = 3

  def echo(self, *args, **kwargs):
    self.calls += 1
    return args, kwargs

  def fail(self):
    raise KeyError('no such key')

  def fail_on_half_a_character(self):
    raise FileNotFoundError('no file \udcff')

  def unspeakable(self):
    return object()

  def block(self):
    self.calls += 1
    self.release.wait(60)

  def zeros(self, count):
    return np.zeros(count, np.uint8)

  def run(self):
    raise AssertionError('must not be called')

  def unlisted(self):
    raise AssertionError('must not be called')

  def _private(self):
    raise AssertionError('must not be called')


@pytest.fixture
def address(tmp_path):
  return f'unix:{tmp_path}/server'


@pytest.fixture
def service(address):
  instance = Service()
  with rpc.serve(instance, address):
    yield instance
    instance.release.set()


def test_arrays_cross_in_arguments_and_results(service, address):
  client = rpc.Client(address)
  array = np.random.default_rng(0).normal(size=(3, 50_000))
  (got, nested), kwargs = client.echo(array, [(array[0],)], key=array[1])
  np.testing.assert_array_equal(got, array)
  np.testing.assert_array_equal(nested[0][0], array[0])
  np.testing.assert_array_equal(kwargs['key'], array[1])


def test_numpy_scalars_cross(service, address):
  client = rpc.Client(address)
  (got,), _ = client.echo({'return': [np.float64(1.5), np.zeros(())]})
  assert got == {'return': [1.5, 0.0]}
  assert type(got['return'][0]) is np.float64


def test_an_error_of_the_server_comes_back_with_its_traceback(service, address):
  with pytest.raises(rpc.RemoteError) as caught:
    rpc.Client(address).fail()
  error = caught.value
  assert (error.type_name, error.message) == ('KeyError', "'no such key'")
  assert 'in fail' in error.remote_traceback and 'in fail' in str(error)
  assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_half_a_character_does_not_keep_an_error_from_its_caller(
  service, address
):
  with pytest.raises(rpc.RemoteError, match=r'no file \?'):
    rpc.Client(address).fail_on_half_a_character()


def test_what_cannot_cross_is_a_type_error_at_its_end(service, address):
  client = rpc.Client(address)
  with pytest.raises(TypeError, match='builtins.object'):
    client.echo(object())
  assert service.calls == 0
  with pytest.raises(rpc.RemoteError, match='TypeError'):
    client.unspeakable()


def test_only_listed_methods_are_served_and_the_nearest_is_named(
  service, address
):
  client = rpc.Client(address)
  with pytest.raises(rpc.RemoteError, match=r"'ecko'. It serves echo"):
    client.ecko()
  for method in ('unlisted', 'run', '_private', 'not_callable', '__init__'):
    with pytest.raises(rpc.RemoteError, match='does not serve'):
      client._call(method)


def test_a_call_to_nobody_ends_at_the_deadline(address):
  start = time.monotonic()
  with pytest.raises(rpc.Unavailable) as caught:
    rpc.Client(address, timeout_s=0.3).echo()
  assert 0.2 < time.monotonic() - start < 5.0
  assert not caught.value.delivered
  assert address in str(caught.value) and 'echo' in str(caught.value)
  assert isinstance(caught.value, ConnectionError)


def test_a_call_that_is_not_answered_ends_at_the_deadline(service, address):
  client = rpc.Client(address)
  client.echo()
  start = time.monotonic()
  with pytest.raises(
    rpc.Unavailable, match=r'no answer within 0.2 s'
  ) as caught:
    client.with_deadline(0.2).block()
  assert time.monotonic() - start < 5.0
  assert caught.value.delivered
  assert client.echo(1) == ((1,), {})


def test_an_answer_on_its_way_may_be_later_than_the_deadline(service, address):
  with paced.link(address, 0.1) as slow:  # 2 MB in three seconds
    client = rpc.Client(slow, timeout_s=2.0)
    start = time.monotonic()
    assert client.zeros(2_000_000).shape == (2_000_000,)
    assert time.monotonic() - start > 2.0
    assert client.echo(1) == ((1,), {})  # over the same connection


def test_an_answer_that_stops_midway_is_given_up(service, address, monkeypatch):
  monkeypatch.setattr(channel, '_STALL_S', 1.0)
  with paced.link(address, 0.0, most_bytes=100_000) as slow:
    client = rpc.Client(slow, timeout_s=2.0)
    start = time.monotonic()
    with pytest.raises(
      rpc.Unavailable, match=r'too slowly: [\d,]+ of 2,000,\d{3} bytes'
    ) as caught:
      client.zeros(2_000_000)
    assert time.monotonic() - start < 10.0
    assert caught.value.delivered


def test_an_answer_that_stays_too_slow_is_given_up(
  service, address, monkeypatch
):
  monkeypatch.setattr(channel, 'LEAST_BYTES_PER_S', 2e7)
  with paced.link(address, 0.2) as slow:  # a third of a megabyte per second
    client = rpc.Client(slow, timeout_s=2.0)
    start = time.monotonic()
    with pytest.raises(rpc.Unavailable, match='too slowly'):
      client.zeros(20_000_000)  # 3 s, of a minute
    assert 2.5 < time.monotonic() - start < 20.0


def test_something_that_listens_but_is_no_server_ends_at_the_deadline(
  address, tmp_path
):
  with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(f'{tmp_path}/server')
    listener.listen()
    start = time.monotonic()
    with pytest.raises(rpc.Unavailable):
      rpc.Client(address, timeout_s=0.5).echo()
    assert time.monotonic() - start < 5.0


def test_a_call_waits_for_a_server_that_comes_up(address):
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(1) as pool:
    call = pool.submit(client.echo, 5)
    time.sleep(0.3)
    assert not call.done()
    with rpc.serve(Service(), address):
      assert call.result() == ((5,), {})


def test_a_client_finds_a_server_that_was_away_at_once(address):
  client = rpc.Client(address, timeout_s=0.1)
  patient = client.with_deadline(60.0)  # over the same connections
  for _ in range(3):
    with rpc.serve(Service(), address):
      start = time.monotonic()
      assert rpc.retry(lambda: patient.echo(1)) == ((1,), {})
      assert time.monotonic() - start < 4.0
    with pytest.raises(rpc.Unavailable):
      client.echo(1)


def test_a_call_whose_server_dies_is_not_made_twice(address):
  first, second = Service(), Service()
  client = rpc.Client(address, timeout_s=60.0)
  with futures.ThreadPoolExecutor(1) as pool:
    with rpc.serve(first, address):
      call = pool.submit(client.block)
      while not first.calls:
        time.sleep(0.01)
    first.release.set()
    with rpc.serve(second, address):
      with contextlib.suppress(rpc.Unavailable):
        call.result()
      assert (first.calls, second.calls) == (1, 0)


def test_a_blocked_call_does_not_keep_the_server_from_stopping(address):
  instance = Service()
  client = rpc.Client(address, timeout_s=0.2)
  start = time.monotonic()
  with rpc.serve(instance, address):
    with pytest.raises(rpc.Unavailable):
      client.block()
  assert time.monotonic() - start < 20.0
  instance.release.set()


def test_many_threads_share_a_client(service, address):
  client = rpc.Client(address)
  with futures.ThreadPoolExecutor(8) as pool:
    results = list(pool.map(lambda i: client.echo(np.full(10, i)), range(200)))
  assert [int(args[0][0]) for args, _ in results] == list(range(200))


def test_a_client_can_be_pickled(service, address):
  client = pickle.loads(pickle.dumps(rpc.Client(address, timeout_s=2.5)))
  assert (client.address, client.timeout_s) == (address, 2.5)
  assert client.echo() == ((), {})


def test_a_deadline_is_needed():
  for timeout_s in (0, math.nan, math.inf, 1e300):  # no clock waits so long
    with pytest.raises(ValueError, match='needs a deadline'):
      rpc.Client('localhost:1', timeout_s=timeout_s)


def test_a_port_in_use_is_named():
  with socket.socket() as listener:
    listener.bind(('', 0))
    listener.listen()
    port = listener.getsockname()[1]
    with pytest.raises(OSError, match=f'port {port}.*Another process'):
      sockets.listen(f'tls://localhost:{port}')


def test_a_socket_in_use_is_named_and_the_rest_of_a_dead_one_is_not_in_the_way(
  address, service
):
  with pytest.raises(OSError, match=f'listen on {address}.*Another process'):
    with rpc.serve(Service(), address):
      pass
  with pytest.raises(OSError, match=f'`ss -lnpx src {address[5:]}`'):
    sockets.listen(address)
  assert rpc.Client(address).echo() == ((), {})
  sockets.listen(f'{address}-2').close()  # Its file is still there.
  with rpc.serve(Service(), f'{address}-2'):
    assert rpc.Client(f'{address}-2').echo() == ((), {})


@pytest.mark.parametrize('names', [['_private'], ['run'], ['nothing']])
def test_what_is_listed_but_cannot_be_served_is_named(names, address):
  instance = Service()
  instance.serves = names
  with pytest.raises(TypeError, match=f'Service.serves holds {names[0]!r}'):
    with rpc.serve(instance, address):
      pass


def test_a_handle_becomes_a_client_with_the_deadline_of_its_node(tmp_path):
  program = lp.Program('test')
  with program.group('server'):
    handle = program.add_node(rpc.Node(Service, timeout_s=3.0))
  prepare.prepare(
    program,
    directory.Local(tmp_path),
    lp.stop,
  )
  client = handle.dereference()
  assert (client.address, client.timeout_s) == ('server/0', 3.0)


def unavailable():
  raise rpc.Unavailable('localhost:1', 'method', False, 'away')


def test_retry_goes_on_until_the_server_is_there():
  tries = []

  def third_time():
    tries.append(time.monotonic())
    if len(tries) < 3:
      unavailable()
    return 'here'

  assert rpc.retry(third_time, 10.0) == 'here'
  pauses = np.diff(tries)
  # At least: a busy machine makes them longer.
  assert pauses[0] > 0.07 and pauses[1] > 0.15


def test_retry_gives_up_and_says_so():
  start = time.monotonic()
  with pytest.raises(rpc.Unavailable, match='gave up after'):
    rpc.retry(unavailable, 0.3)
  assert 0.25 < time.monotonic() - start < 5.0


def test_retry_gives_up_at_once_when_told_to_stop(monkeypatch):
  monkeypatch.setattr(client_lib, '_PAUSE_S', (5.0, 5.0))
  start = time.monotonic()
  with pytest.raises(rpc.Unavailable):
    rpc.retry(unavailable, 60.0, should_stop=lambda: True)
  assert time.monotonic() - start < 3.5


def test_retry_does_not_hide_other_errors():
  def fail():
    raise rpc.RemoteError('KeyError', 'x', '')

  with pytest.raises(rpc.RemoteError):
    rpc.retry(fail)
