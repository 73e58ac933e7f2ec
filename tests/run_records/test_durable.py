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
    # Dates and the like: nobody reads them.
    np.testing.assert_array_equal(found['theta'], theta)
    assert found['start'] == 3 and len(found) == 2
  assert refused > len(whole) / 4  # of half of its bytes


def test_no_changed_byte_gives_another_state(state):
  checkpoints.write_state(state, {'totals': {'steps': 12}, 'reason': ''})
  whole = state.read_bytes()
  for place in range(0, len(whole), 2):
    changed = bytearray(whole)
    changed[place] ^= 0x01
    state.write_bytes(changed)
    try:
      found = checkpoints.read_state(state)
    except durable.Broken:
      continue
    assert found['totals'] == {'steps': 12} and found['reason'] == '', place


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


def test_a_file_without_its_checksum_is_broken_like_any_other(path, state):
  said = []
  for value in range(2):
    checkpoints.write(path, theta=np.full(2, value))
    checkpoints.write_state(state, {'totals': {'steps': value}})
  with open(path, 'wb') as file:
    np.savez(file, other=np.ones(2))
  state.write_text('{}')
  found = checkpoints.read_state(state, say=said.append)
  assert found == {'totals': {'steps': 0}}
  arrays = checkpoints.read(path, say=said.append)
  np.testing.assert_array_equal(arrays['theta'], np.zeros(2))
  assert len(said) == 2 and all('checksum does not fit' in x for x in said)


def test_a_file_of_a_version_without_checksums_is_read(path, state):
  with open(path, 'wb') as file:
    np.savez(file, theta=np.ones(2))
  state.write_text('{"steps": 3}')
  np.testing.assert_array_equal(checkpoints.read(path)['theta'], np.ones(2))
  assert checkpoints.read_state(state) == {'steps': 3}


def test_a_file_that_is_lost_is_not_taken_for_one_that_never_was(path):
  checkpoints.write(path, theta=np.zeros(2))
  checkpoints.write(path, theta=np.ones(2))
  path.unlink()
  durable.older(path).write_bytes(b'PK no zip')
  with pytest.raises(durable.Broken) as caught:
    checkpoints.read(path)
  for word in ('learner-0.npz is missing', 'older is broken', 'from a copy'):
    assert word in str(caught.value)
  durable.older(path).unlink()
  with pytest.raises(durable.Broken, match='is missing and .* is missing'):
    checkpoints.read(path)


def test_what_is_written_without_sync_leaves_the_older_one_alone(state):
  for number, sync in enumerate([True, True, False, False]):
    checkpoints.write_state(state, {'total': number}, sync)
  assert checkpoints.read_state(state) == {'total': 3}
  state.write_bytes(b'')  # as after a power cut
  assert checkpoints.read_state(state) == {'total': 0}


def test_all_files_of_a_run_are_looked_at(path, state, tmp_path):
  checkpoints.write_state(state, {'total': 1})
  for value in range(2):
    checkpoints.write(path, theta=np.full(2, value))
  said = []
  checkpoints.check(tmp_path, said.append)
  assert said == []
  path.write_bytes(b'')
  checkpoints.check(tmp_path, said.append)
  assert len(said) == 1 and 'learner-0.npz is broken' in said[0]
  assert path.with_name('learner-0.npz.broken').exists()
  state.unlink()
  with pytest.raises(durable.Broken, match='counter.json is missing'):
    checkpoints.check(tmp_path, said.append)


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


@pytest.fixture
def flushes(monkeypatch):
  """Grows with each wait for the disk."""
  found, fsync = [], os.fsync
  monkeypatch.setattr(os, 'fsync', lambda fd: found.append(fd) or fsync(fd))
  return found


def test_a_generation_that_is_on_disk_is_not_put_there_again(path, flushes):
  checkpoints.write(path, theta=np.zeros(2))
  for sync, wanted in [(True, 2), (False, 0), (True, 3), (True, 2)]:
    flushes.clear()
    checkpoints.write(path, sync=sync, theta=np.zeros(2))
    assert len(flushes) == wanted  # 3: the one before was written without


@pytest.mark.parametrize('name', checkpoints.PLAYED)
def test_what_is_only_played_refuses_no_resumption(path, tmp_path, name):
  checkpoints.write(path, theta=np.zeros(2))
  played = path.with_name(name)
  for _ in range(2):
    checkpoints.write(played, theta=np.zeros(2))
  for generation in (played, durable.older(played)):
    generation.write_bytes(b'')
  said = []
  checkpoints.check(tmp_path, said.append)
  assert len(said) == 1 and 'put aside' in said[0]
  assert checkpoints.read(played) is None
  assert played.with_name(f'{name}.broken').exists()
  checkpoints.write(played, theta=np.ones(2))
  assert not durable.older(played).exists()
  checkpoints.check(tmp_path, said.append)
  assert len(said) == 1


def test_a_file_that_is_first_written_while_it_is_looked_for_is_not_lost(
  tmp_path,
):
  path = tmp_path / 'counter.json'

  def load(candidate):
    durable.write(path, lambda file: file.write(b'new'))
    raise FileNotFoundError(candidate)

  assert durable.read(path, load) is None
