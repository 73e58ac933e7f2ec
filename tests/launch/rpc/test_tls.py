"""launch/rpc between machines: who has no certificate of the run is refused."""

import contextlib
import dataclasses
import datetime
import resource
import socket
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
import numpy as np
import pytest

from murmuration.launch import rpc
from murmuration.launch.rpc import codec
from murmuration.launch.rpc import connection as connection_lib
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import serving as serving_lib
from murmuration.launch.rpc import sockets
from murmuration.launch.rpc import tls


class Service:
  serves = ('echo',)

  def echo(self, x):
    return x


class Network(directory.Directory):
  """Of one server, at a free port."""

  def __init__(self, credentials, host='localhost'):
    self._credentials = credentials
    self._address = f'tls://{host}:{directory.pick_port(set())}'

  @property
  def credentials(self):
    return self._credentials

  def claim(self, name, kind='rpc'):
    return self._address

  def find(self, name, timeout_s=None):
    return self._address

  def connect(self):
    host, port = self._address.removeprefix('tls://').split(':')
    return socket.create_connection((host, int(port)), 20)


@pytest.fixture(scope='module')
def credentials():
  return tls.make()


@pytest.fixture
def network(credentials):
  return Network(credentials)


@pytest.fixture
def serving(network, credentials):
  address = network.claim('server/0')
  with rpc.serve(Service(), address, 1, credentials):
    yield network


def client_of(network):
  return rpc.Client(directory.Name('server/0', network), timeout_s=60.0)


@pytest.mark.parametrize('size', [0, 1, 5_000, 70_000, 3_000_000])
def test_arrays_cross_in_both_directions(serving, size):
  array = np.random.default_rng(0).integers(0, 255, size, np.uint8)
  np.testing.assert_array_equal(client_of(serving).echo(array), array)


def test_a_server_that_was_started_again_is_found(network, credentials):
  client = client_of(network)
  for i in range(3):
    with rpc.serve(Service(), network.claim('x'), 4, credentials):
      assert client.echo(i) == i


@pytest.mark.parametrize('certified', [True, False])
def test_another_run_is_refused_by_both_ends(serving, caplog, certified):
  stranger = Network(tls.make())
  stranger._address = serving._address
  with pytest.raises(rpc.Unavailable):
    rpc.Client(directory.Name('server/0', stranger), timeout_s=0.5).echo(1)
  # Also if it does not care who the server is.
  careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  if certified:
    careless = tls.make().client_context()
    assert careless.verify_mode == ssl.CERT_REQUIRED
  careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
  with careless.wrap_socket(serving.connect()) as connection:
    # In TLS 1.3 a client learns of the refusal after its handshake.
    with contextlib.suppress(ssl.SSLError, ConnectionError):
      connection.sendall(b''.join(codec.encode_parts(('echo', (1,), {}))))
      assert connection.recv(1) == b''
  assert 'refused a connection' in caplog.text
  assert client_of(serving).echo(1) == 1


def test_what_is_no_tls_is_refused_and_what_is_silent_holds_nobody(serving):
  silent = [serving.connect() for _ in range(20)]
  with serving.connect() as connection:
    connection.sendall(b'GET / HTTP/1.1\r\n\r\n' * 10)
    with contextlib.suppress(ConnectionError):
      while connection.recv(1000):  # at most an alert
        pass
  assert client_of(serving).echo(1) == 1
  for connection in silent:
    connection.close()


def test_strangers_keep_no_room_from_the_run(
  network, credentials, monkeypatch, caplog
):
  # 16 connections, and 4 handshakes besides.
  monkeypatch.setattr(resource, 'getrlimit', lambda which: (32, 32))
  monkeypatch.setattr(connection_lib, '_HANDSHAKE_S', 60.0)
  client = client_of(network)
  with rpc.serve(Service(), network.claim('server/0'), 1, credentials):
    assert client.echo(1) == 1
    (kept,) = client._idle
    with contextlib.ExitStack() as stack:
      silent = [stack.enter_context(network.connect()) for _ in range(40)]
      assert client_of(network).echo(2) == 2
      # The first of them are ended, and not the client that was there before.
      assert all(one.recv(1) == b'' for one in silent[:36])
      silent[-1].setblocking(False)
      with pytest.raises(BlockingIOError):
        silent[-1].recv(1)
      assert client.echo(3) == 3
      assert client._idle == [kept]
  assert caplog.text.count('have not shown a certificate') == 1


def test_a_handshake_has_less_time_than_a_message(
  network, credentials, monkeypatch, caplog
):
  assert connection_lib._HANDSHAKE_S < connection_lib._GRACE_S
  monkeypatch.setattr(connection_lib, '_HANDSHAKE_S', 0.0)
  monkeypatch.setattr(serving_lib, '_LOOK_S', 0.1)
  with rpc.serve(Service(), network.claim('server/0'), 1, credentials):
    with network.connect() as silent:
      assert silent.recv(1) == b''  # within the 20 s of this socket
  assert 'too slow' in caplog.text
  assert 'NoneType' not in caplog.text


def test_a_server_that_lets_nobody_in_is_not_said_to_be_away(
  network, credentials, monkeypatch
):
  monkeypatch.setattr(resource, 'getrlimit', lambda which: (2, 2))
  with rpc.serve(Service(), network.claim('server/0'), 1, credentials):
    first, second = client_of(network), client_of(network)
    assert first.echo(1) == 1
    with pytest.raises(rpc.Unavailable) as refused:
      second.with_deadline(0.3).echo(2)
  assert 'nothing listens' not in str(refused.value)


@pytest.mark.parametrize('host', ['::1', '[::1]'])
def test_a_host_may_have_an_ipv6_address(credentials, host):
  try:
    socket.create_server(('::1', 0), family=socket.AF_INET6).close()
  except OSError:
    pytest.skip('this machine has no IPv6')
  network = Network(credentials, host)
  with rpc.serve(Service(), network.claim('server/0'), 1, credentials):
    assert client_of(network).echo(1) == 1


@pytest.mark.parametrize('host', ['192.0.2.1', '2001:db8::1'])
def test_an_address_of_another_host_is_not_said_to_be_in_use(host):
  with pytest.raises(OSError, match='has to be an address of this host') as no:
    sockets.listen(f'tls://{host}:29999')
  assert 'Another process' not in str(no.value)


def test_an_address_that_others_reach_needs_certificates(network):
  with pytest.raises(ValueError, match='needs the certificates'):
    with rpc.serve(Service(), network.claim('server/0')):
      pass
  with pytest.raises(ValueError, match='needs the certificates'):
    rpc.Client(network.claim('server/0'), timeout_s=1.0).echo(1)


def test_an_address_without_a_kind_is_refused():
  with pytest.raises(ValueError, match='unix:PATH or tls://HOST:PORT'):
    rpc.Client('localhost:8000').echo(1)


def test_the_key_is_not_printed(credentials):
  assert 'PRIVATE' in credentials.key
  assert credentials.key not in repr(credentials)


def test_a_host_whose_clock_is_behind_takes_part(monkeypatch):
  class Ahead(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
      return super().now(tz) + datetime.timedelta(minutes=2)

  with monkeypatch.context() as patch:
    patch.setattr(datetime, 'datetime', Ahead)
    future = tls.make()
  network = Network(future)
  with rpc.serve(Service(), network.claim('server/0'), 1, future):
    assert client_of(network).echo(1) == 1


def test_another_certificate_of_the_same_key_is_refused(serving, credentials):
  key = serialization.load_pem_private_key(credentials.key.encode(), None)
  name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, 'other')])
  now = datetime.datetime.now(datetime.timezone.utc)
  made = (
    x509.CertificateBuilder()
    .subject_name(name)
    .issuer_name(name)
    .public_key(key.public_key())
    .serial_number(1)
    .not_valid_before(now)
    .not_valid_after(now + datetime.timedelta(days=1))
    .sign(key, hashes.SHA256())
  )
  other = dataclasses.replace(
    credentials,
    certificate=made.public_bytes(serialization.Encoding.PEM).decode(),
  )
  stranger = Network(other)
  stranger._address = serving._address
  with pytest.raises(rpc.Unavailable):
    rpc.Client(directory.Name('server/0', stranger), timeout_s=0.5).echo(1)
