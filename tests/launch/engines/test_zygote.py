"""The process that nodes are forked from: many of them, or a failed fork."""

import errno
import json
import os
import pathlib
import socket
import subprocess
import sys
import traceback

from murmuration.launch import pulse
from murmuration.launch.engines import prepare
from murmuration.launch.engines import processes
from murmuration.launch.engines import zygote

ROOT = pathlib.Path(__file__).parents[3]

# Starts nodes, and reads of them only when it has started all. The room in
# between is made small, so that a hundred nodes are many.
MANY = """
import json, pathlib, socket, sys
from absl import flags
from murmuration.launch import pulse
from murmuration.launch.engines import prepare
from murmuration.launch.engines import zygote
from murmuration.launch.rpc import directory

def small():
  ends = plain(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  for end in ends:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
  return ends

plain, socket.socketpair = socket.socketpair, lambda *unused: small()
scratch, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
flags.FLAGS(sys.argv[:1])
nodes = [
  prepare.PreparedNode(f'node/{i}', None, lambda: 1 / 0, {})
  for i in range(number)
]
launcher = zygote.Launcher(prepare.Family(
  nodes, [scratch / 'log'] * number, pulse.Board(scratch, number).slots,
  directory.Local(scratch), scratch, scratch,
))
for index in range(number):
  launcher.channel.send(op='start', index=index, again=0, env={})
heard = []
while [event for _, event in heard].count('exited') < number:
  if launcher.channel.wait([], 60.0):
    message = launcher.channel.receive()
    heard.append((message['index'], message['event']))
launcher.quit()
print(json.dumps(heard))
"""


def test_many_nodes_start_though_nobody_reads_of_the_first(tmp_path):
  scratch = tmp_path / 'scratch'
  scratch.mkdir()
  run = subprocess.run(
    [sys.executable, '-c', MANY, str(scratch), '100'],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=200,
    check=False,
  )
  assert run.returncode == 0, run.stderr
  heard = [tuple(pair) for pair in json.loads(run.stdout)]
  for event in ('started', 'running', 'exited'):
    assert sorted(i for i, e in heard if e == event) == [*range(100)]
  # Of each its end is heard last.
  assert set(dict(heard).values()) == {'exited'}
  assert not scratch.exists()


def test_nobody_waits_for_a_zygote_that_is_stopped(tmp_path):
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  with ours, theirs:
    channel, other = zygote.Channel(ours), zygote.Channel(theirs)
    for index in range(5000):  # more than there is room for
      channel.send(op='signal', index=index)
    heard = []
    while len(heard) < 5000:
      channel.wait([], 0.0)
      assert other.wait([], 60.0)
      heard.append(other.receive()['index'])
    assert heard == [*range(5000)]


def family(directory, slots):
  node = prepare.PreparedNode('node/0', None, lambda: None, {})
  logs = [directory / 'log']
  return prepare.Family([node], logs, slots, None, directory, directory)


def test_a_fork_that_fails_is_the_failure_of_that_node(tmp_path, monkeypatch):
  def no_fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

  def no_signal(*unused):
    raise AssertionError('there is no process to signal')

  board = pulse.Board(tmp_path, 1)
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  backend = processes.Backend([tmp_path / 'log'], board.slots)
  made = zygote.Zygote(theirs, family(tmp_path, board.slots), None)
  with ours, theirs, monkeypatch.context() as patched:
    patched.setattr(os, 'fork', no_fork)
    patched.setattr(os, 'kill', no_signal)
    patched.setattr(os, 'killpg', no_signal)
    made._fork(0, 0, {})
    message = zygote.Channel(ours).receive()
    made._signal(0, 9)
  assert message == {
    'event': 'exited',
    'index': 0,
    'pid': None,
    'code': 1,
    'oom': False,
  }
  event = backend._exited(message)
  assert event.failed and not event.killed
  assert event.error.startswith(
    'its process could not be forked: [Errno 11] Resource temporarily'
  )


def test_a_node_whose_log_cannot_be_written_goes_on_without(tmp_path):
  script = (
    'import sys; from murmuration.launch.engines import child; '
    'import pathlib; child._redirect_output(pathlib.Path(sys.argv[1])); '
    'print("lost"); sys.exit(7)'
  )
  done = subprocess.run(
    [sys.executable, '-c', script, str(tmp_path / 'gone' / 'node-0.log')],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert (done.returncode, done.stdout, done.stderr) == (7, '', '')
  assert list(tmp_path.iterdir()) == []


def test_a_node_that_ends_as_the_kernel_runs_out_of_memory_is_told_so(
  tmp_path,
):
  pid = os.fork()  # a zygote takes all children of its process for its own
  if not pid:
    code = 1
    try:
      _ends_as_memory_runs_out(tmp_path)
      code = 0
    finally:
      os._exit(code)
  assert os.waitpid(pid, 0)[1] == 0


def _ends_as_memory_runs_out(directory):
  kills, clock = [7], [1000.0]
  zygote.linux.oom_kills = lambda: kills[-1]
  zygote.time.monotonic = lambda: clock[-1]
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  made = zygote.Zygote(theirs, family(directory, []), None)

  def end():
    process = subprocess.Popen(['sleep', '300'])
    made._nodes[process.pid] = 0
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    made._reap()
    return zygote.Channel(ours).receive()

  try:
    assert (end()['code'], end()['oom']) == (-9, False)
    kills.append(8)
    assert end()['oom']
    clock.append(1000.0 + zygote._OOM_S)
    assert not end()['oom']  # of which one is that long ago
  except BaseException:
    traceback.print_exc()
    raise
