"""Who runs a run: told by a lock, which the kernel frees."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from murmuration.run_records import launcher

CHILD = """
import os, pathlib, sys, time
from murmuration.run_records import launcher
with launcher.claim(pathlib.Path(sys.argv[1])):
  node = sys.argv[2:] and not os.fork()  # one that outlives it
  if node or not sys.argv[2:]:
    print('has it', flush=True)
  if node:
    time.sleep(60)
    os._exit(0)
  sys.stdin.read()
"""


@pytest.fixture
def claimed(tmp_path):
  """claimed(*more): another process that has the run of `tmp_path`."""
  processes = []

  def start(*more):
    processes.append(
      subprocess.Popen(
        [sys.executable, '-c', CHILD, tmp_path, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
      )
    )
    assert processes[-1].stdout.readline() == 'has it\n'
    return processes[-1]

  yield start
  for process in processes:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_run_is_refused_until_its_launcher_ends(claimed, tmp_path):
  other = claimed()
  assert launcher.running(tmp_path)
  with pytest.raises(launcher.Refused, match=f'process {other.pid} '):
    with launcher.claim(tmp_path):
      pass
  assert json.loads((tmp_path / launcher.FILE).read_text())['pid'] == other.pid
  other.communicate()  # its standard input ends
  assert not launcher.running(tmp_path)
  assert not (tmp_path / launcher.FILE).exists()
  with launcher.claim(tmp_path):
    assert launcher.running(tmp_path)


def test_a_killed_launcher_has_no_run_even_if_its_nodes_live(claimed, tmp_path):
  other = claimed('with a node')
  other.kill()
  other.wait()
  # The record of the dead one is still there.
  assert (tmp_path / launcher.FILE).exists()
  assert not launcher.running(tmp_path)
  with launcher.claim(tmp_path):
    record = json.loads((tmp_path / launcher.FILE).read_text())
    assert record['pid'] == os.getpid()


def test_a_stopped_launcher_still_has_its_run(claimed, tmp_path):
  other = claimed()
  other.send_signal(signal.SIGSTOP)
  assert launcher.running(tmp_path)
  with pytest.raises(launcher.Refused):
    with launcher.claim(tmp_path):
      pass
  other.send_signal(signal.SIGCONT)


def test_a_look_does_not_keep_a_run_from_its_launcher(tmp_path):
  looks = subprocess.Popen(
    [
      sys.executable,
      '-c',
      'import pathlib, sys\n'
      'from murmuration.run_records import launcher\n'
      'print(flush=True)\n'
      'while True: launcher.running(pathlib.Path(sys.argv[1]))\n',
      tmp_path,
    ],
    stdout=subprocess.PIPE,
  )
  try:
    looks.stdout.readline()
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
      with launcher.claim(tmp_path):
        pass
  finally:
    looks.kill()
    looks.communicate()
