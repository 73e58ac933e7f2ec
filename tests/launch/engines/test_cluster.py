"""The parts of the engine `ray` that need no Ray: words, ways, sums."""

import contextlib
import pathlib
import shutil
import socket
import sys
import threading
import time
import types

import numpy as np
import pytest

from agents import parameters
from launch import cell as cell_lib
from launch import command_line
from launch import engines
from launch import needs
from launch import pulse
from launch import rpc
from launch import session
from launch.engines.cluster import addresses
from launch.engines.cluster import code
from launch.engines.cluster import copies
from launch.engines.cluster import host
from launch.engines.cluster import resources
from launch.rpc import directory
from launch.rpc import hosts
from launch.rpc import server
from launch.rpc import tls
from launch.services import variables
from murmuration import objects
from tests import loopback_hosts
from tests import paced

# --- Resources ----------------------------------------------------------------


def test_flags_say_what_a_group_needs():
  found = resources.parse(['learner:cpus=4,gpus=1', 'actor:highmem=0.5'])
  assert found == {
    'learner': {'CPU': 4.0, 'GPU': 1.0},
    'actor': {'highmem': 0.5},
  }
  assert resources.of_groups(['learner', 'actor', 'counter'], found) == {
    'learner': {'CPU': 4.0, 'GPU': 1.0},
    'actor': {'CPU': 1.0, 'highmem': 0.5},
    'counter': {'CPU': 1.0},
  }


@pytest.mark.parametrize(
  'text', ['learner', 'learner:', 'learner:cpus', ':cpus=1', 'a:cpus=-1']
)
def test_a_flag_that_says_nothing_is_refused_with_an_example(text):
  with pytest.raises(ValueError, match='GROUP:NAME=NUMBER'):
    engines.Options('', [text])


def test_a_group_that_is_not_there_is_refused_with_those_that_are():
  with pytest.raises(ValueError, match="no group 'actors'; it has actor"):
    resources.of_groups(['actor'], {'actors': {'CPU': 1.0}})


def test_what_can_never_be_placed_is_refused_with_the_arithmetic():
  nodes = {'learner/0': {'CPU': 1.0, 'GPU': 2.0}, 'actor/0': {'CPU': 1.0}}
  there = [{'CPU': 8.0, 'GPU': 1.0}, {'CPU': 64.0}]
  with pytest.raises(ValueError) as refused:
    resources.check(nodes, there)
  assert str(refused.value).startswith(
    'learner/0 asks for 2 GPU, and the largest of 2 hosts has 1'
  )
  # Each resource alone is there, but on two hosts.
  nodes['learner/0'] = {'CPU': 16.0, 'GPU': 1.0}
  with pytest.raises(ValueError, match='16 CPU and 1 GPU, which none of'):
    resources.check(nodes, there)


def test_what_has_to_wait_is_said():
  nodes = {f'actor/{i}': {'CPU': 1.0} for i in range(5)}
  assert resources.check(nodes, [{'CPU': 2.0}, {'CPU': 3.0}]) == ''
  assert resources.check(nodes, [{'CPU': 2.0}, {'CPU': 2.0}]) == (
    '5 nodes ask for 5 CPU; there are 4 on 2 hosts'
  )


# --- Sentences ----------------------------------------------------------------


def test_without_ray_the_sentence_says_how_to_get_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(engines.Refused, match='needs Ray.*pip install ray=='):
    engines.check_ray()


@pytest.mark.parametrize(
  'said, why',
  [
    ('lerner:cpus=4', "no group 'lerner'; it has counter, "),
    ('learner:cpus=0.00001', 'finer than 0.0001'),
    ('learner:gpus=1.5', 'above 1 it is a whole number'),
    ('learner:object_store_memory=1', "is Ray's own"),
  ],
)
def test_what_nodes_cannot_ask_for_is_refused_before_anything_is_written(
  said, why, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  command = ['impala', '--lp_launch_type=ray', f'--cluster={said}']
  assert command_line.main(command) == 2
  error = capsys.readouterr().err
  assert error.startswith('error: ') and why in error
  assert not list(tmp_path.iterdir())


def test_a_command_that_was_refused_works_once_the_reason_is_gone(
  tmp_path, monkeypatch
):
  where = tmp_path / 'run'
  cell = cell_lib.resolve('impala')
  ray = engines.Options('127.0.0.1:1')  # where nobody listens
  assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert not where.exists()

  def no_host(*unused, **named):
    raise engines.Refused('no host is large enough')

  monkeypatch.setattr(engines, 'run', no_host)
  ray = engines.Options()
  assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert not where.exists()


def test_without_openssl_a_run_on_several_hosts_is_refused(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setenv('PATH', '/nowhere')
  where = tmp_path / 'run'
  with socket.create_server(('127.0.0.1', 0)) as server:
    ray = engines.Options(f'127.0.0.1:{server.getsockname()[1]}')
    cell = cell_lib.resolve('impala')
    monkeypatch.setattr(engines, 'run', lambda *a, **k: 1 / 0)
    assert session.run(cell, 'ray', where, isolate='off', ray=ray) == 2
  assert 'apt-get install openssl' in capsys.readouterr().err
  assert not where.exists()


def test_a_cluster_is_not_measured_by_the_launcher(monkeypatch, tmp_path):
  def measured(*unused):
    raise ValueError('measured here')

  monkeypatch.setattr(needs, 'check', measured)
  with socket.create_server(('127.0.0.1', 0)) as server:
    there = f'127.0.0.1:{server.getsockname()[1]}'
    with monkeypatch.context() as patched:
      patched.setattr(engines, 'run', lambda *a, **k: 1 / 0)
      with pytest.raises(ZeroDivisionError):  # it came that far
        session.run(
          cell_lib.resolve('impala'),
          'ray',
          tmp_path / 'run',
          ray=engines.Options(there),
        )


def plan_for(token, version):
  return host.Plan('run', 1, '/there', {}, token, version, {}, None)


def test_a_host_that_does_not_see_the_run_directory_is_refused(tmp_path):
  token = tmp_path / 'token'
  refusal = host.mismatch(plan_for((str(token), 'ours'), code.version()))
  assert refusal.startswith(f'it does not see the run directory: {token}')
  token.write_text('of another file system')
  assert host.mismatch(plan_for((str(token), 'ours'), code.version()))
  token.write_text('ours')
  assert not host.mismatch(plan_for((str(token), 'ours'), code.version()))


def test_a_host_with_other_code_is_refused_with_both_versions(tmp_path):
  token = tmp_path / 'token'
  token.write_text('ours')
  refusal = host.mismatch(plan_for((str(token), 'ours'), 'project abc'))
  assert 'it has another version of the project' in refusal
  assert code.version() in refusal and 'the launcher project abc' in refusal


def test_all_that_a_run_may_import_of_the_project_is_compared():
  # No run imports what measures runs.
  assert {*code._PACKAGES} == {*objects.PACKAGES} - {'studies'}


def test_a_host_that_is_full_is_refused_with_what_to_do(tmp_path, monkeypatch):
  def memory(available):
    found = types.SimpleNamespace(available=available)
    monkeypatch.setattr(host.psutil, 'virtual_memory', lambda: found)

  memory(2e9)
  room = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(
    host.shutil, 'disk_usage', lambda path: room._replace(free=3_000_000)
  )
  assert host.full().startswith('its disk is full: ')
  assert 'has 3 MB free, and nodes need 200. Make room' in host.full()
  monkeypatch.setattr(
    host.shutil, 'disk_usage', lambda path: room._replace(free=10**12)
  )
  assert host.full() == ''
  memory(20e6)
  assert host.full().startswith('its memory is full: 20 MB are available')


# --- Addresses ----------------------------------------------------------------


@pytest.fixture
def on_hosts(tmp_path, monkeypatch):
  """on_hosts(number): agents' addresses and tunnels, all on this machine."""
  monkeypatch.setattr(addresses, '_FRESH_S', 0.0)
  with contextlib.ExitStack() as stack:
    yield lambda number, plain=False: stack.enter_context(
      loopback_hosts.make(tmp_path, number, plain)
    )


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
  with socket.create_connection((name, int(port)), 10.0) as connection:
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
  assert entry.startswith('localhost:')
  assert ask(entry) == b'first?'
  assert ask(first.find(name)) == b'first?'
  # The word and its answer went between hosts once; the rest stayed here.
  here, there = first.tunnel.traffic(), second.tunnel.traffic()
  assert (there['sent'], there['received']) == (len('?'), len('first?'))
  assert (here['sent'], here['received']) == (len('first?'), len('?'))
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
  assert address == here.replace('localhost', '127.0.0.1')  # of that host
  assert first.find(name) == here
  with listen(address, b'first'):
    assert ask(address) == b'first?'
  assert second.tunnel.traffic()['sent'] == 0
  # Calls stay in TLS.
  first.claim('counter/0', 'rpc')
  assert second.find('counter/0').startswith('tls://')


def test_the_gate_of_a_host_lets_nobody_else_in(on_hosts):
  (only,) = on_hosts(1)
  name = 'replay/0/replay0'
  with listen(only.claim(name, 'port'), b'secret'):
    gate = only.place(name)['gate']
    with contextlib.suppress(ConnectionError):
      assert b'secret' not in ask(gate, b'GET / HTTP/1.1' + b'\r\n\r\n')
    # Another run's certificate.
    ip, port = gate.rsplit(':', 1)
    context = tls.make().client_context()
    with socket.create_connection((ip, int(port))) as plain:
      with pytest.raises(OSError):
        stranger = context.wrap_socket(plain)
        stranger.sendall(f'{name}\n'.encode())
        assert not stranger.recv(100)
        raise ConnectionError


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
      time.sleep(2 * copies._FRESH_S)
      for actor in actors:
        answer = actor.get_parameters(version - 1)
        assert answer['version'] == version
        assert answer['theta'] == bytes([version]) * 50_000
        assert actor.get_parameters(version)['theta'] is None
    assert learner.sent == 2
  # Two versions for the host, and not for each of its eight actors.
  assert second.tunnel.traffic()['parameters'] == 2 * 50_000
  assert first.tunnel.traffic()['parameters'] == 0  # nobody asks there
  time.sleep(2 * copies._FRESH_S)
  # It is away: an actor hears of it as if it had asked itself.
  with pytest.raises(rpc.Unavailable, match='learner/0'):
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
    assert self._over.wait(60)


def test_nodes_of_one_process_are_called_from_there_and_from_elsewhere(
  on_hosts, tmp_path
):
  on_hosts(2)
  node = rpc.Node(Threads, timeout_s=20.0)
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
  with server.serve(Desk(), f'unix:{tmp_path / hosts.SOCKET}'):
    name = directory.Name('slow', hosts.Directory(tmp_path))
    start = time.monotonic()
    with pytest.raises(rpc.Unavailable, match='cannot be looked up'):
      rpc.Client(name, timeout_s=0.2).echo(1)
    assert time.monotonic() - start < 10.0  # the agent itself has 15 s
    goes_on.set()


def test_on_one_host_an_actor_asks_the_learner_itself(tmp_path):
  client = rpc.Client(directory.Name('learner/0', directory.Local(tmp_path)))
  assert rpc.near(client) is client
  plain = object()
  assert rpc.near(plain) is plain


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
      return ['ca', 'certificate', 'key']

    def ask_to_stop(self):
      self.asked = True

  desk = Desk()
  with server.serve(desk, f'unix:{tmp_path / hosts.SOCKET}'):
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
    assert ours.credentials == tls.Credentials('ca', 'certificate', 'key')
    hosts.ask_to_stop()
    assert desk.asked
  assert isinstance(ours, directory.Directory)
