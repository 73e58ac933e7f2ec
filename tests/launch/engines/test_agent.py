"""The agent of a host, whose processes end before it or fail; no Ray."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types

import pytest

from murmuration.launch import pulse
from murmuration.launch import rpc
from murmuration.launch.engines import zygote
from murmuration.launch.engines.cluster import forkserver
from murmuration.launch.engines.cluster import host
from murmuration.launch.rpc import hosts
from murmuration.launch.rpc import tls


@pytest.fixture
def make_host(tmp_path, tmp_path_factory, monkeypatch):
  """make_host(**plan): an agent, and the zygote's end of its channel."""
  context = types.SimpleNamespace(get_node_id=lambda: 'one')
  ray = types.SimpleNamespace(
    get_runtime_context=lambda: context,
    nodes=lambda: [{'NodeID': 'one', 'NodeManagerAddress': '127.0.0.1'}],
  )
  monkeypatch.setitem(sys.modules, 'ray', ray)
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  monkeypatch.setattr(host.Host, '_spawn', lambda self, environment: ours)
  plan = {
    'run': 'run',
    'family': b'',
    'num_nodes': 2,
    'logs': str(tmp_path_factory.mktemp('logs')),
    'versions': {},
    'environment': {},
    'credentials': (),
    'plain': False,
  }
  with ours, theirs:
    yield lambda **changes: (
      host.Host({**plan, **changes}, None),
      zygote.Channel(theirs),
    )


def test_an_agent_that_cannot_begin_leaves_no_files(
  make_host, tmp_path, monkeypatch
):
  def full(*unused):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(host.pulse, 'Board', full)
  with pytest.raises(OSError, match='No space left'):
    make_host()
  assert list(tmp_path.iterdir()) == []


def test_a_host_with_another_version_of_a_package_is_refused(
  make_host, tmp_path
):
  make_host(versions={'not-installed-here': '1.0'})
  for name in ('numpy', 'Python'):
    with pytest.raises(RuntimeError, match=name):
      make_host(versions={name: '0.0'})


def test_a_host_that_does_not_see_the_run_directory_is_refused(make_host):
  with pytest.raises(RuntimeError, match='/nowhere/logs'):
    make_host(logs='/nowhere/logs')


def test_a_killed_zygote_leaves_no_process_and_no_file_of_its_nodes(
  make_host, tmp_path
):
  agent, theirs = make_host()
  place = agent.poll(0.0)['place']
  # What is left when a node has died with the zygote: its group, and a child
  # with a session of its own.
  group, stray = [
    subprocess.Popen(['sleep', '300'], start_new_session=True, env=own)
    for own in ({}, {'TMPDIR': place})
  ]
  try:
    theirs.send(event='started', index=0, pid=group.pid)
    theirs.socket.close()
    answer = agent.poll(0.0)
    assert [m['event'] for m in answer['messages']] == ['started']
    assert answer['gone']
    assert group.wait(30) == stray.wait(30) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
  finally:
    for process in (group, stray):
      process.kill()
      process.wait()


def test_a_node_that_asks_to_stop_the_run_is_told_of(make_host):
  agent, _ = make_host()
  answer = agent.poll(0.0)
  assert not answer['asked']
  rpc.Client(f'unix:{answer["place"]}/{hosts.SOCKET}').ask_to_stop()
  assert agent.poll(0.0)['asked']


def test_a_zygote_that_cannot_start_says_why(make_host):
  agent, theirs = make_host()
  log = pathlib.Path(agent.poll(0.0)['place']) / 'forkserver.log'
  log.write_text('importing launchpad ...\nImportError: no such thing\n')
  theirs.socket.close()
  assert 'ImportError: no such thing' in agent.poll(0.0)['gone']


def test_an_agent_ends_once_its_zygote_has(make_host, tmp_path):
  agent, theirs = make_host()
  ended = threading.Thread(target=agent.end)
  ended.start()
  assert theirs.wait([], 60.0) and theirs.receive() == {'op': 'quit'}
  assert ended.is_alive()
  theirs.socket.close()
  ended.join(60.0)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('several', [True, False])
def test_a_host_that_hears_nothing_from_the_launcher_ends_its_nodes(
  make_host, monkeypatch, several
):
  monkeypatch.setattr(host, 'LEASE_S', 0.5)
  monkeypatch.setattr(host, '_LOOK_S', 0.1)
  made = tls.make()
  credentials = (made.certificate, made.key) if several else ()
  agent, theirs = make_host(credentials=credentials)
  if several:
    assert theirs.wait([], 60.0) and theirs.receive() is None
    assert 'launcher' in agent.poll(0.0)['gone']
  else:  # Ray ends its agent with the launcher
    assert not theirs.wait([], 2.0)


def test_a_zygote_whose_agent_is_gone_before_it_is_ready_leaves_no_files(
  tmp_path,
):
  scratch = tmp_path / 'murmuration-1'
  (scratch / 'run').mkdir(parents=True)
  pulse.Board(scratch / 'run', 1)
  (scratch / 'run' / forkserver.FILE).write_bytes(forkserver.dumps([], []))
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  ours.close()
  # Without the stack, which takes long and changes nothing here. Who reads its
  # output has the end of it when the last process of it has ended.
  command = (
    'from murmuration.run_records import later; '
    f'later.load = lambda names: None; {forkserver.COMMAND}'
  )
  with theirs:
    run = subprocess.run(
      [
        *(sys.executable, '-c', command),
        *(str(theirs.fileno()), str(scratch / 'run')),
      ],
      pass_fds=[theirs.fileno()],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=120,
      check=False,
    )
  assert not scratch.exists(), run.stdout
