"""The agent of a host, whose processes end before it or fail; no Ray."""

import asyncio
import dataclasses
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

import cloudpickle
import pytest

from launch import pulse
from launch import rpc
from launch.engines import zygote
from launch.engines.cluster import code
from launch.engines.cluster import forkserver
from launch.engines.cluster import host
from launch.engines.cluster import tunnel
from launch.rpc import hosts
from launch.rpc import sockets
from launch.rpc import tls


@pytest.fixture
def plan(tmp_path_factory):
  """Of a launcher that has the same code and run directory."""
  token = tmp_path_factory.mktemp('shared') / 'token'
  token.write_text('ours')
  return host.Plan(
    'run', 2, b'', (str(token), 'ours'), code.version(), {}, None
  )


@pytest.fixture
def make_agent(tmp_path, monkeypatch, plan):
  """make_agent(): an agent, and the zygote's end of its channel."""
  context = types.SimpleNamespace(get_node_id=lambda: 'one')
  ray = types.SimpleNamespace(
    get_runtime_context=lambda: context,
    nodes=lambda: [{'NodeID': 'one', 'NodeManagerAddress': '127.0.0.1'}],
  )
  monkeypatch.setitem(sys.modules, 'ray', ray)
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  monkeypatch.setattr(host.Agent, '_spawn', lambda self: ours)
  made = []

  def make():
    made.append(host.Agent(make.plan, None))
    return made[-1], zygote.Channel(theirs)

  make.plan = plan

  with ours, theirs:
    yield make
    for agent in made:
      agent.end()


def test_an_agent_that_cannot_begin_leaves_no_files(
  make_agent, tmp_path, monkeypatch
):
  def full(*unused):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(host.pulse, 'Board', full)
  with pytest.raises(OSError, match='No space left'):
    make_agent()
  assert list(tmp_path.iterdir()) == []


def test_an_agent_with_other_code_says_so_before_it_runs_any(
  make_agent, tmp_path, monkeypatch, plan
):
  monkeypatch.setattr(host.Agent, '_set_up', lambda *unused: 1 / 0)
  agent = host.Agent(dataclasses.replace(plan, code='project abc'), None)
  said = agent.describe()
  assert said['place'] == '' and said['ip'] == '127.0.0.1'
  assert said['problem'].startswith('it has another version of the project')
  agent.end()
  # Not a launcher that knows none of our ways to say the rest, either.
  older = dataclasses.replace(plan, code='project abc', token=None)
  assert host.Agent(older, None).describe()['problem'] == said['problem']
  assert list(tmp_path.iterdir()) == []


def test_a_node_has_the_modules_of_its_host_before_those_of_the_launcher(
  tmp_path,
):
  root = str(pathlib.Path(host.__file__).parents[3])
  own, shared, tree, users = [
    str(tmp_path / name) for name in ('own', 'shared', 'tree', 'users')
  ]
  for path in (shared, tree, users):
    os.mkdir(path)
  launchers = [tree, shared, '/nowhere', users]
  program = pickle.dumps((launchers, '/', cloudpickle.dumps(([], []))))
  (tmp_path / forkserver.FILE).write_bytes(program)
  pulse.Board(tmp_path, 1)
  code = (
    'import sys; from launch.engines.cluster import forkserver; '
    # Ray puts what the launcher has before its own.
    'sys.path[:] = sys.argv[2:]; '
    'import pathlib; forkserver._loads(pathlib.Path(sys.argv[1])); '
    'print(sys.path)'
  )
  done = subprocess.run(
    [sys.executable, '-c', code, str(tmp_path), users, shared, own, root],
    env={**os.environ, 'PYTHONPATH': root},
    stdout=subprocess.PIPE,
    text=True,
    timeout=120,
    check=True,
  )
  # Of the project one tree, and a user's files after it.
  found = [root, own, tree, shared, users]
  assert done.stdout.splitlines()[-1] == str(found)


def test_a_killed_zygote_leaves_no_process_and_no_file_of_its_nodes(
  make_agent, tmp_path
):
  agent, theirs = make_agent()
  place = agent.describe()['place']
  # What is left when a node has died with the zygote: its group, and a child
  # with a session of its own.
  group, stray = [
    subprocess.Popen(['sleep', '300'], start_new_session=True, env=own)
    for own in ({}, {'TMPDIR': place})
  ]
  try:
    theirs.send(event='ready', index=-1, pid=1 << 30)
    theirs.send(event='started', index=0, pid=group.pid)
    theirs.socket.close()
    answer = agent.poll(0.0)
    assert [m['event'] for m in answer['messages']] == ['ready', 'started']
    assert answer['gone'] == 'what starts nodes was killed'
    assert group.wait(30) == stray.wait(30) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
  finally:
    for process in (group, stray):
      process.kill()
      process.wait()


def test_a_node_that_asks_to_stop_the_run_is_told_of(make_agent):
  agent, _ = make_agent()
  assert not agent.poll(0.0)['asked']
  rpc.Client(f'unix:{agent._place / hosts.SOCKET}').ask_to_stop()
  assert agent.poll(0.0)['asked']


def test_a_zygote_that_ends_before_it_is_ready_says_why(make_agent):
  agent, theirs = make_agent()
  (agent._place / 'forkserver.log').write_text(
    'importing launchpad ...\nImportError: no such thing\n'
  )
  assert agent.poll(0.0)['gone'] == ''
  theirs.socket.close()
  assert agent.poll(0.0)['gone'] == (
    'what starts nodes ended before it was ready: ImportError: no such thing'
  )


def test_a_zygote_whose_agent_is_gone_before_it_is_ready_leaves_no_files(
  tmp_path,
):
  scratch = tmp_path / 'murmuration-1'
  (scratch / 'run').mkdir(parents=True)
  pulse.Board(scratch / 'run', 1)
  (scratch / 'run' / forkserver.FILE).write_bytes(forkserver.dumps([], []))
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  ours.close()
  descriptor = theirs.fileno()
  # Without the stack, which takes long and changes nothing here. Who reads its
  # output has the end of it when the last process of it has ended.
  command = (
    'from run_records import later; '
    f'later.load = lambda names: None; {forkserver.COMMAND}'
  )
  with theirs:
    run = subprocess.run(
      [sys.executable, '-c', command, str(descriptor), str(scratch / 'run')],
      pass_fds=[descriptor],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=120,
      check=False,
    )
  assert not scratch.exists(), run.stdout


@pytest.fixture
def waits(make_agent, monkeypatch):
  """waits(agent, number): so many waits of the lease, of a second each.

  Returns whether that has ended the agent's nodes.
  """

  watch, begun = host.Agent._watch_lease, threading.Event()
  # The agent's own thread would look at the made-up time too.
  monkeypatch.setattr(host.Agent, '_watch_lease', lambda self: begun.set())

  def wait(agent, number, seconds=1.0):
    assert begun.wait(60), 'nobody watches'
    made = iter([False] * number + [True])
    clock = types.SimpleNamespace(now=0.0)

    def pause(unused):
      clock.now += seconds
      return next(made)

    with monkeypatch.context() as patch:
      patch.setattr(agent, '_over', types.SimpleNamespace(wait=pause))
      patch.setattr(host.time, 'monotonic', lambda: clock.now)
      watch(agent)
    return agent._lapsed

  monkeypatch.setattr(host, 'LEASE_S', 20.0)
  monkeypatch.setattr(host, '_LOOK_S', 1.0)
  return wait


def test_a_host_that_hears_nothing_ends_its_nodes_and_says_why(
  make_agent, waits
):
  agent, _ = make_agent()
  for _ in range(3):
    assert not waits(agent, 19)
  assert agent.poll(0.0)['gone'] == ''
  # This host was what stood still, just after it had heard something.
  assert waits(agent, 1, seconds=30.0)
  assert agent.poll(0.0)['gone'] == (
    'nothing was heard from the launcher for 20 s'
  )


def test_a_launcher_of_this_machine_may_be_stopped_as_long_as_it_lives(
  make_agent, waits, monkeypatch
):
  launcher = subprocess.Popen(['sleep', '300'])
  try:
    make_agent.plan = dataclasses.replace(
      make_agent.plan, launcher=launcher.pid
    )
    agent, _ = make_agent()
    launcher.send_signal(signal.SIGSTOP)
    assert not waits(agent, 100)
    launcher.kill()
    os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
    assert waits(agent, 20)  # though nobody has reaped it
  finally:
    launcher.kill()
    launcher.wait()


def test_an_agent_does_not_wait_for_a_process_that_nobody_reaps(
  make_agent, monkeypatch
):
  agent, _ = make_agent()
  dead = subprocess.Popen(['true'])
  os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
  agent._pid = dead.pid
  with monkeypatch.context() as patch:
    patch.setattr(host.time, 'sleep', lambda unused: 1 / 0)
    agent.end()
  dead.wait()


def test_a_tunnel_that_ended_is_why_a_host_is_given_up(make_agent):
  agent, _ = make_agent()
  (agent._place / 'tunnel.log').write_text('OSError: no such address\n')
  agent._tunnel = subprocess.Popen(['sleep', '300'])
  try:
    assert agent.poll(0.0)['gone'] == ''
  finally:
    agent._tunnel.kill()
    agent._tunnel.wait()
  assert agent.poll(0.0)['gone'] == (
    'the tunnel to other hosts ended with exit code -9: '
    'OSError: no such address'
  )


def test_a_tunnel_without_an_address_for_its_gate_ends_and_says_so(tmp_path):
  # Of those that are no machine's (RFC 5737).
  process, _ = tunnel.start(tmp_path, '192.0.2.1', tls.make())
  with process:
    try:
      assert process.wait(120) == 1
    finally:
      process.kill()
  assert "('192.0.2.1', " in host._last_line(tmp_path / 'tunnel.log')


def connect(address):
  """A connection, once somebody listens."""
  name, port = address.rsplit(':', 1)
  deadline = time.monotonic() + 60
  while True:
    try:
      return socket.create_connection((name, int(port)), 30.0)
    except ConnectionRefusedError:
      assert time.monotonic() < deadline
      time.sleep(0.02)


def test_connections_at_the_gate_notice_a_host_that_is_gone(
  tmp_path, monkeypatch
):
  tuned, seen = [], threading.Event()

  def tune(plain):
    tuned.append(plain.getpeername())
    seen.set()

  credentials = tls.make()
  made = tunnel.Tunnel(tmp_path, '127.0.0.1', credentials)
  monkeypatch.setattr(sockets, 'tune', tune)
  thread = threading.Thread(target=made.run, daemon=True)
  thread.start()
  with connect(made.gate()) as plain:
    with credentials.client_context().wrap_socket(plain) as connection:
      try:
        assert seen.wait(60)
        assert tuned == [connection.getsockname()]
      finally:
        end(made._loop, thread)


def end(loop, thread):
  """Ends a loop that runs in a thread, and what it is in the middle of."""
  loop.call_soon_threadsafe(loop.stop)
  thread.join(30)

  async def cancel():
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

  loop.run_until_complete(cancel())
  loop.close()
