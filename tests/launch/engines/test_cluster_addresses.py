"""How nodes on several hosts find each other; no Ray."""

import contextlib
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from murmuration.launch import rpc
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import hosts
from murmuration.launch.rpc import tls


def listen(address, answer):
  """Answers each connection with a word; returns the listener."""
  name, port = address.rsplit(':', 1)
  listener = socket.create_server((name, int(port)))

  def serve():
    with contextlib.suppress(OSError):
      while True:
        connection, _ = listener.accept()
        connection.sendall(answer + connection.recv(100))
        connection.close()

  threading.Thread(target=serve, daemon=True).start()
  return listener


def ask(address, word=b'?'):
  name, port = address.rsplit(':', 1)
  with socket.create_connection((name, int(port)), 60.0) as connection:
    connection.sendall(word)
    answer = b''
    while part := connection.recv(100):
      answer += part
    return answer


def test_a_server_is_found_by_its_socket_here_and_by_tls_from_elsewhere(
  on_hosts,
):
  first, second = on_hosts(2)
  assert first.find('counter/0') is None
  ours, theirs = first.claim('counter/0', 'rpc').split(' ')
  assert ours.startswith('unix:')
  assert theirs.startswith('tls://127.0.0.1:')
  assert first.find('counter/0') == ours
  assert second.find('counter/0') == theirs


def test_a_port_is_reached_from_another_host_also_after_it_moved(on_hosts):
  first, second = on_hosts(2)
  name = 'replay/0/replay0'
  listener = listen(first.claim(name, 'port'), b'first')
  entry = second.find(name)
  assert entry.startswith('127.0.0.1:')
  assert ask(entry) == b'first?'
  assert ask(first.find(name)) == b'first?'
  with listener:
    listener.shutdown(socket.SHUT_RDWR)
  assert ask(entry) == b''  # nobody there: the connection ends
  with listen(second.claim(name, 'port'), b'second'):
    assert second.find(name) == entry
    assert ask(entry) == b'second?'
    assert ask(first.find(name)) == b'second?'


def test_plain_replay_goes_past_the_tunnel(on_hosts):
  first, second = on_hosts(2, plain=True)
  name = 'replay/0/replay0'
  here = first.claim(name, 'port')
  address = second.find(name)
  assert address == here  # of that host
  assert first.find(name) == here
  with listen(address, b'first'):
    assert ask(address) == b'first?'
  # Calls stay in TLS.
  first.claim('counter/0', 'rpc')
  assert second.find('counter/0').startswith('tls://')


def test_the_gate_of_a_host_lets_nobody_else_in(on_hosts):
  (only,) = on_hosts(1)
  name = 'replay/0/replay0'
  with listen(only.claim(name, 'port'), b'secret'):
    gate = only.gate
    with contextlib.suppress(ConnectionError):
      assert b'secret' not in ask(gate, b'GET / HTTP/1.1' + b'\r\n\r\n')
    # Another run's certificate, and a client that trusts any server.
    ip, port = gate.rsplit(':', 1)
    careless = tls.make().client_context()
    careless.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection((ip, int(port)), 60.0)
    with careless.wrap_socket(plain) as stranger:
      # In TLS 1.3 a client learns of the refusal after its handshake.
      with contextlib.suppress(ssl.SSLError, ConnectionError):
        stranger.sendall(f'{name}\n?'.encode())
        assert stranger.recv(100) == b''


class Threads:
  """A node among others in one process, until it is told to end."""

  serves = ('echo', 'end')

  def __init__(self):
    self._over = threading.Event()

  def echo(self, x):
    return x

  def end(self):
    self._over.set()

  def run(self):
    assert self._over.wait(200)


def test_nodes_of_one_process_are_called_from_there_and_from_elsewhere(
  on_hosts, tmp_path, monkeypatch
):
  # Of this process: back as it was after the test.
  monkeypatch.setattr(hosts, '_agent', None)
  monkeypatch.setattr(hosts, '_claimed', {})
  on_hosts(2)
  node = rpc.Node(Threads, timeout_s=60.0)
  name = directory.Name('pair/0', hosts.Directory(tmp_path / '0'))
  node._address.bind(name)
  name.directory.claim(name.name)
  thread = threading.Thread(target=node.run)
  thread.start()
  try:
    assert node.create_handle().dereference().echo(1) == 1
    hosts.found(tmp_path / '1')
    assert node.create_handle().dereference().echo(2) == 2
  finally:
    node._instance.end()
    thread.join(30)


def test_a_lookup_ends_with_the_deadline_of_its_call(tmp_path):
  class Desk:
    serves = ('find',)

    def find(self, name):
      goes_on.wait(60)

  goes_on = threading.Event()
  with rpc.serve(Desk(), f'unix:{tmp_path / hosts.SOCKET}'):
    name = directory.Name('slow', hosts.Directory(tmp_path))
    start = time.monotonic()
    with pytest.raises(rpc.Unavailable, match='cannot be looked up'):
      rpc.Client(name, timeout_s=0.2).echo(1)
    assert time.monotonic() - start < 10.0  # the agent itself has 15 s
    goes_on.set()


def test_a_node_asks_the_agent_of_its_own_host(tmp_path, monkeypatch):
  class Desk:
    serves = ('claim', 'find', 'credentials', 'ask_to_stop')
    asked = False

    def claim(self, name, kind):
      return f'{kind} of {name}'

    def find(self, name):
      if name == 'slow':
        raise TimeoutError('the actor of names does not answer')
      return None if name == 'none' else f'way to {name}'

    def credentials(self):
      return ['certificate', 'key']

    def ask_to_stop(self):
      self.asked = True

  desk = Desk()
  with rpc.serve(desk, f'unix:{tmp_path / hosts.SOCKET}'):
    ours = hosts.Directory(pathlib.Path(tmp_path))
    assert ours.find('none') is None
    assert ours.find('replay/0') == 'way to replay/0'
    # A caller expects Unavailable, and tries again.
    slow = rpc.Client(directory.Name('slow', ours), timeout_s=0.1)
    with pytest.raises(
      rpc.Unavailable, match='at slow: it cannot be looked up'
    ):
      slow.get_parameters(0)
    # Nor does a wait for one that is not ours end with the first error.
    monkeypatch.setattr(directory, '_WAIT_S', 0.1)
    why = r'TimeoutError: the actor of names does not answer\) within 0.1 s'
    with pytest.raises(ConnectionError, match=why):
      directory.Name('slow', ours).build()
    assert ours.claim('replay/0', 'port') == 'port of replay/0'
    assert ours.find('replay/0') == 'port of replay/0'
    assert ours.credentials == tls.Credentials('certificate', 'key')
    hosts.ask_to_stop()
    assert desk.asked
  assert isinstance(ours, directory.Directory)


# Reverb of another host, which is another loopback address.
ASKS = """
import os
from murmuration.launch.rpc import directory
from murmuration.launch.rpc import hosts
from murmuration.launch import rpc
import murmuration.replay
import reverb

server = reverb.Server([reverb.Table.queue('queue', 2)])

class Desk:
  serves = ('find',)
  def find(self, name):
    return f'127.0.0.2:{server.port}'

place = hosts.pathlib.Path(os.environ['PLACE'])
with rpc.serve(Desk(), f'unix:{place / hosts.SOCKET}'):
  address = directory.Name('replay/0', hosts.Directory(place)).build()
  print(*reverb.Client(address).server_info(timeout=60))
print(os.environ['no_grpc_proxy'])
"""


def test_reverb_of_another_host_is_not_asked_through_a_proxy(tmp_path):
  # Nothing listens at the proxy's port.
  proxies = dict.fromkeys(('http_proxy', 'https_proxy'), 'http://127.0.0.1:9')
  own = {**os.environ, **proxies, 'no_proxy': 'a.b', 'PLACE': str(tmp_path)}
  own.pop('no_grpc_proxy', None)
  done = subprocess.run(
    [sys.executable, '-c', ASKS],
    env={**own, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
    stdout=subprocess.PIPE,
    text=True,
    timeout=200,
    check=True,
  )
  tables, direct = done.stdout.split()
  assert tables == 'queue'
  assert {'a.b', '127.0.0.2', '127.0.0.1'} <= {*direct.split(',')}
