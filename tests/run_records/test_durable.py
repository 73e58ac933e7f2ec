"""Files that a run goes on from: whole, in two generations, or refused."""

import json
import logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from murmuration.run_records import checkpoints
from murmuration.run_records import durable

KILLED = """
import os, pathlib, signal, sys
import numpy as np
from murmuration.run_records import checkpoints
np.savez = lambda file, **arrays: (
  file.write(b'half'), file.flush(), os.kill(os.getpid(), signal.SIGKILL)
)
checkpoints.write(pathlib.Path(sys.argv[1]), theta=np.ones(3))
"""


@pytest.fixture
def path(tmp_path):
  return checkpoints.directory(tmp_path) / 'learner-0.npz'


@pytest.fixture
def state(tmp_path):
  (tmp_path / 'metrics').mkdir()
  return tmp_path / 'metrics' / checkpoints.COUNTER


def test_what_was_never_written_is_none(path, state):
  assert checkpoints.read(path) is None
  assert checkpoints.read_state(state) is None


def test_the_newest_is_read_and_the_one_before_is_kept(path, state):
  for number in range(3):
    checkpoints.write(path, theta=np.full(2, number))
    checkpoints.write_state(state, {'total': number, 'mean': float('inf')})
  np.testing.assert_array_equal(checkpoints.read(path)['theta'], [2, 2])
  np.testing.assert_array_equal(np.load(durable.older(path))['theta'], [1, 1])
  assert checkpoints.read_state(state) == {'total': 2, 'mean': float('inf')}
  assert json.loads(durable.older(state).read_text())['total'] == 1


def test_no_changed_byte_gives_other_arrays(path):
  theta = np.arange(3, dtype=np.float32)
  checkpoints.write(path, theta=theta, start=3)
  whole = path.read_bytes()
  refused = 0
  for place in range(0, len(whole), 2):
    changed = bytearray(whole)
    changed[place] ^= 0x55
    path.write_bytes(changed)
    try:
      found = checkpoints.read(path)
    except durable.Broken:
      refused += 1
      continue
    # Dates and the like, which nobody reads; or an array is missed.
    for name, value in found.items():
      np.testing.assert_array_equal(value, {'theta': theta, 'start': 3}[name])
  assert refused > len(whole) / 4  # of half of its bytes


@pytest.mark.parametrize('harm', ['cut', 'emptied', 'removed'])
def test_the_generation_before_is_taken_and_it_is_said(path, caplog, harm):
  checkpoints.write(path, theta=np.zeros(2))
  checkpoints.write(path, theta=np.ones(2))
  if harm == 'removed':
    path.unlink()
  else:
    path.write_bytes(path.read_bytes()[:40] if harm == 'cut' else b'')
  with caplog.at_level(logging.WARNING):
    found = checkpoints.read(path, repair=True)
  np.testing.assert_array_equal(found['theta'], np.zeros(2))
  assert 'Going on from learner-0.npz.older' in caplog.text
  # What is broken is not what the next write keeps.
  checkpoints.write(path, theta=np.full(2, 2))
  np.testing.assert_array_equal(np.load(durable.older(path))['theta'], [0, 0])


def test_what_is_written_without_sync_leaves_the_older_one_alone(state):
  for number, sync in enumerate([True, True, False, False]):
    checkpoints.write_state(state, {'total': number}, sync)
  assert checkpoints.read_state(state) == {'total': 3}
  state.write_bytes(b'')  # as after a power cut
  assert checkpoints.read_state(state) == {'total': 0}


def test_what_a_killed_writer_left_is_removed_by_the_next(path):
  checkpoints.write(path, theta=np.zeros(2))
  done = subprocess.run([sys.executable, '-c', KILLED, str(path)], timeout=60)
  assert done.returncode == -signal.SIGKILL

  def left():
    return [p for p in path.parent.iterdir() if p.suffix[1:].isdigit()]

  assert len(left()) == 1
  np.testing.assert_array_equal(np.load(path)['theta'], np.zeros(2))
  # Not what a writer that lives is writing.
  living = path.with_name(f'.{path.name}.{os.getppid()}.1')
  living.write_bytes(b'half')
  durable.sweep(path.parent)
  assert left() == [living]


WRITES = """
import pathlib, sys
import numpy as np
from murmuration.run_records import checkpoints
run = pathlib.Path(sys.argv[1])
checkpoints.check(run, print)
path = checkpoints.directory(run) / 'learner-0.npz'
state = run / checkpoints.COUNTER
number = int((checkpoints.read(path) or {'number': 0})['number'])
print('from', number, flush=True)
while True:
  number += 1
  checkpoints.write(path, number=number, theta=np.full(10_000, number))
  checkpoints.write_state(state, {'number': number}, number % 5 == 0)
  print(number, flush=True)
"""


@pytest.mark.long
def test_a_writer_that_is_killed_goes_on_each_time(tmp_path):
  reached = 0
  for rounds, wait_s in enumerate(np.random.default_rng(0).uniform(0, 0.4, 8)):
    writer = subprocess.Popen(
      [sys.executable, '-c', WRITES, str(tmp_path)],
      stdout=subprocess.PIPE,
      text=True,
    )
    said = writer.stdout.readline()
    assert said.startswith('from ') and int(said.split()[1]) >= reached, said
    for _ in range(rounds):  # however slow the disk is
      writer.stdout.readline()
    time.sleep(wait_s)
    writer.kill()
    writer.communicate()
    found = checkpoints.read(tmp_path / 'checkpoints' / 'learner-0.npz')
    if found is not None:
      reached = int(found['number'])
      assert (found['theta'] == reached).all()
  assert reached > 20


def test_files_with_a_checksum_of_an_earlier_version_are_read(path, state):
  with open(path, 'wb') as file:
    np.savez(file, crc32=np.uint32(7), theta=np.ones(2))
  state.write_text('{"steps": 3, "crc32": 7}')
  found = checkpoints.read(path)
  np.testing.assert_array_equal(found.pop('theta'), np.ones(2))
  assert found == {} and checkpoints.read_state(state) == {'steps': 3}


@pytest.mark.parametrize('lost', ['broken', 'missing'])
def test_a_file_without_an_intact_generation_is_refused(path, lost):
  for value in range(2):
    checkpoints.write(path, theta=np.full(2, value))
  path.unlink()
  if lost == 'broken':
    path.write_bytes(b'')
  durable.older(path).write_bytes(b'PK no zip')
  with pytest.raises(durable.Broken, match=rf'npz is {lost} .*older is broken'):
    checkpoints.read(path)


def test_all_that_a_run_goes_on_from_is_looked_at(path, state, tmp_path):
  for value in range(2):
    checkpoints.write_state(state, {'total': value})
    checkpoints.write(path, theta=np.full(2, value))
  said = []
  checkpoints.check(tmp_path, said.append)
  assert said == []
  path.write_bytes(b'')
  state.write_text('{}')
  checkpoints.check(tmp_path, said.append)
  assert len(said) == 2 and 'learner-0.npz is broken' in said[0]
  np.testing.assert_array_equal(checkpoints.read(path)['theta'], [0, 0])
  assert checkpoints.read_state(state) == {'total': 0}
  for generation in (state, durable.older(state)):
    generation.write_text('{"tot')
  with pytest.raises(durable.Broken, match='counter.json is broken'):
    checkpoints.check(tmp_path, said.append)


@pytest.mark.parametrize('name', [*checkpoints.PLAYED, 'ring-worker-0.npz'])
def test_what_a_run_can_go_on_without_refuses_no_resumption(
  path, tmp_path, name
):
  checkpoints.write(path, theta=np.zeros(2))
  other = path.with_name(name)
  for _ in range(2):
    checkpoints.write(other, theta=np.zeros(2))
  for generation in (other, durable.older(other)):
    generation.write_bytes(b'')
  said = []
  checkpoints.check(tmp_path, said.append)
  assert len(said) == 1 and name in said[0]
  assert checkpoints.read(other) is None
  checkpoints.write(other, theta=np.ones(2))
  checkpoints.check(tmp_path, said.append)
  assert len(said) == 1
