"""launch/rpc/directory.py: addresses by name, on one machine."""

from concurrent import futures
import ipaddress
import json
import pathlib
import pickle
import socket
import subprocess
import sys

import launchpad as lp
import pytest

from murmuration.launch import rpc
from murmuration.launch.engines import prepare
from murmuration.launch.rpc import directory

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Service:
  serves = ('echo',)

  def echo(self, x):
    return x


@pytest.fixture
def local(tmp_path):
  return directory.Local(tmp_path)


def port_of(address):
  return int(address.rsplit(':', 1)[1])


def listen(address):
  listener = socket.socket()
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  listener.bind(('', port_of(address)))
  listener.listen()
  return listener


def test_a_name_is_found_once_it_is_claimed(local):
  assert local.find('counter/0') is None
  address = local.claim('counter/0')
  assert local.find('counter/0') == address
  assert local.find('counter/1') is None


def test_a_port_is_reached_without_looking_up_a_name(local):
  host, _, _ = local.claim('replay/0', 'port').rpartition(':')
  assert ipaddress.ip_address(host).is_loopback


def test_a_name_that_is_claimed_again_keeps_its_address(local):
  for kind in ('rpc', 'port'):
    address = local.claim(f'learner/0/{kind}', kind)
    assert local.claim(f'learner/0/{kind}', kind) == address


def test_a_name_is_claimed_again_where_nothing_can_be_written(
  local, monkeypatch
):
  address = local.claim('counter/0')

  def full(*unused, **unused_too):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(pathlib.Path, 'write_text', full)
  assert local.claim('counter/0') == address


def test_a_name_whose_port_somebody_took_moves_and_says_so(local, caplog):
  before = local.claim('replay/0', 'port')
  with listen(before):
    after = local.claim('replay/0', 'port')
  assert after != before
  assert local.find('replay/0') == after
  assert f'replay/0 moves to {after}' in caplog.text


CLAIM = """
import json, pathlib, sys
from murmuration.launch.rpc import directory
local = directory.Local(pathlib.Path(sys.argv[1]))
print(json.dumps({name: local.claim(name, 'port') for name in sys.argv[2:]}))
"""


def test_claims_of_many_processes_are_all_different(tmp_path):
  # Not forked: this process has threads of TensorFlow.
  names = [[f'node/{i}/{j}' for j in range(20)] for i in range(3)]
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', CLAIM, str(tmp_path), *own],
      stdout=subprocess.PIPE,
      cwd=ROOT,
    )
    for own in names
  ]
  found = {}
  try:
    for process in processes:
      found.update(json.loads(process.communicate(timeout=120)[0]))
  finally:
    for process in processes:
      process.kill()
      process.wait()
  assert len(set(found.values())) == 60
  local = directory.Local(tmp_path)
  assert {name: local.find(name) for name in found} == found


def test_a_directory_can_be_pickled(local):
  copy = pickle.loads(pickle.dumps(local))
  address = copy.claim('counter/0')
  assert local.find('counter/0') == address


def test_a_directory_that_is_gone_finds_nothing(tmp_path):
  local = directory.Local(tmp_path / 'gone')
  assert local.find('counter/0') is None


def test_ports_are_outside_the_ephemeral_range(local):
  ports = [port_of(local.claim(str(i), 'port')) for i in range(20)]
  path = pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
  first_ephemeral = int(path.read_text().split()[0])
  assert first_ephemeral < 12_000 or max(ports) < first_ephemeral


def test_a_client_finds_a_server_that_starts_later_and_one_that_moved(
  local, monkeypatch
):
  name = directory.Name('server/0', local)
  client = rpc.Client(name, timeout_s=60.0)
  with futures.ThreadPoolExecutor(1) as pool:
    early = pool.submit(client.echo, 1)
    first = local.claim('server/0')
    with rpc.serve(Service(), first):
      assert early.result() == 1
  elsewhere = f'{first}-2'
  monkeypatch.setattr(local, 'find', lambda *unused: elsewhere)
  with rpc.serve(Service(), elsewhere):
    # The connection of before is lost, which a call under way must tell.
    assert rpc.retry(lambda: client.echo(2)) == 2
  assert client.address == f'server/0 ({elsewhere})'


def test_a_message_does_not_look_for_the_server_that_it_names(
  local, monkeypatch
):
  name = directory.Name('server/0', local)
  client = rpc.Client(name, timeout_s=60.0)
  address = local.claim('server/0')
  assert client.address == 'server/0'
  with rpc.serve(Service(), address):
    client.echo(1)
  monkeypatch.delattr(directory.Local, 'find')
  for one in (client, client.with_deadline(1.0)):
    assert one.address == f'server/0 ({address})'


def test_a_call_to_a_server_that_never_started_names_it(local):
  client = rpc.Client(directory.Name('server/0', local), timeout_s=0.1)
  with pytest.raises(rpc.Unavailable, match='server/0: it has not started'):
    client.echo(1)


def test_addresses_of_a_node_are_named_after_it(local):
  program = lp.Program('test')
  with program.group('server'):
    for _ in range(2):
      program.add_node(rpc.Node(object))
  with program.group('replay'):
    program.add_node(lp.ReverbNode(list))
  nodes = prepare.prepare(program, local, lp.stop)
  assert [node.names for node in nodes] == [
    {'server/0': 'rpc'},
    {'server/1': 'rpc'},
    {'replay/0/reverb': 'port'},
  ]
  assert local.find('server/0') is None  # Nothing has started.
