"""The process that nodes are forked from: many of them, or a failed fork."""

import errno
import json
import os
import pathlib
import socket
import subprocess
import sys

from launch import pulse
from launch.engines import processes
from launch.engines import zygote

ROOT = pathlib.Path(__file__).parents[3]

# Starts nodes, and reads of them only when it has started all. The room in
# between is made small, so that a hundred nodes are many.
MANY = """
import json, pathlib, socket, sys
from launch import pulse
from launch.engines import zygote

def small():
  ends = plain(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  for end in ends:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
  return ends

plain, socket.socketpair = socket.socketpair, lambda *unused: small()
scratch, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
pulse.Board(scratch, number)
launcher = zygote.Launcher()
launcher.send(op='begin', scratch=str(scratch))
for index in range(number):
  launcher.send(
    op='start', index=index, name=f'node/{index}',
    command=['python', 'nodes/python/process_entry.py'],  # it lacks its data
    env={}, cwd='/', path=sys.path, log=str(scratch / 'log'), names={},
    restarts=0, scratch=str(scratch), pulse=str(scratch / pulse.FILE),
  )
heard = []
while [event for _, event in heard].count('exited') < number:
  message = zygote.receive(launcher.channel)
  heard.append((message['index'], message['event']))
launcher.end_run()
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


def test_a_zygote_of_another_network_is_replaced():
  code = """
from launch.engines import zygote

first = zygote.get()
assert zygote.get() is first
one, zygote._network = first.pid, lambda: 'that of --isolate'
second = zygote.get()
assert not first.alive() and second.alive() and second.pid != one
assert zygote.get() is second
second.quit()
"""
  subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    timeout=120,
    check=True,
  )


def test_a_fork_that_fails_is_the_failure_of_that_node(tmp_path, monkeypatch):
  def no_fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

  def no_signal(*unused):
    raise AssertionError('there is no process to signal')

  board = pulse.Board(tmp_path, 1)
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  log = tmp_path / 'log'
  backend = processes.Backend([None], [log], board.slots)
  made = zygote.Zygote(theirs, None)
  with ours, theirs, monkeypatch.context() as patched:
    patched.setattr(os, 'fork', no_fork)
    patched.setattr(os, 'kill', no_signal)
    patched.setattr(os, 'killpg', no_signal)
    pulses = str(tmp_path / pulse.FILE)
    made._fork({'index': 0, 'log': str(log), 'pulse': pulses})
    message = zygote.receive(ours)
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
  assert event.error in log.read_text()


def test_a_node_whose_log_cannot_be_written_goes_on_without(tmp_path):
  script = (
    'import sys; from launch.engines import child; '
    'child._redirect_output(sys.argv[1]); print("lost"); sys.exit(7)'
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
  monkeypatch,
):
  kills, clock = [7], [1000.0]
  monkeypatch.setattr(zygote.linux, 'oom_kills', lambda: kills[-1])
  monkeypatch.setattr(zygote.time, 'monotonic', lambda: clock[-1])
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  with ours, theirs:
    made = zygote.Zygote(theirs, None)

    def end():
      process = subprocess.Popen(['sleep', '300'], start_new_session=True)
      made._nodes[process.pid] = 0
      process.kill()
      os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
      made._reap()
      return zygote.receive(ours)

    assert (end()['code'], end()['oom']) == (-9, False)
    kills.append(8)
    assert end()['oom']
    clock.append(1000.0 + zygote._OOM_S)
    assert not end()['oom']  # of which one is that long ago
