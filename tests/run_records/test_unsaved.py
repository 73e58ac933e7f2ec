"""Checkpoints that fail are said: in a run, at its end, and before a resume."""

import errno
import os

import numpy as np
import pytest

from launch.services import counter as counter_lib
from launch.services import evolution
from run_records import checkpoints
from run_records import durable
from run_records import metrics
from run_records import unsaved


@pytest.fixture
def disk(monkeypatch):
  """disk(True): files take no byte, but are made; disk(False): again."""
  whole, full = durable.replace, []

  def replace(path, save, sync=True):
    if full:
      raise OSError(errno.ENOSPC, 'No space left on device')
    whole(path, save, sync)

  monkeypatch.setattr(durable, 'replace', replace)
  return lambda yes: full.append(1) if yes else full.clear()


@pytest.fixture
def save(tmp_path):
  """save(updates): of learner 0; whether it was written."""

  def save(updates, name='learner-0.npz'):
    path = checkpoints.directory(tmp_path) / name
    try:
      checkpoints.write(path, theta=np.ones(2), updates=updates)
    except OSError:
      return False
    return True

  return save


def _count(run_dir, **updates):
  counter = counter_lib.Counter(run_dir)
  for node, number in updates.items():
    counter.report(node.replace('_', '/'), {'learner_steps': number})
  return counter


def test_a_failed_save_is_said_until_one_is_whole(tmp_path, disk, save):
  assert save(10_776) and unsaved.now(tmp_path) == ''
  disk(True)
  assert not save(20_000)
  mark = tmp_path / 'checkpoints' / 'learner-0.npz.unsaved'
  os.utime(mark, (0, 86_400))
  assert not save(39_128)
  said = unsaved.now(tmp_path)
  # Since the first that failed.
  assert said.startswith('checkpoints fail since 1970-01-0')
  assert said.endswith('learner-0.npz (No space left on device)')
  ended = unsaved.at_end(tmp_path)
  assert 'there is learner-0.npz of update 10,776 (' in ended
  assert 'No space left' in ended and f'--resume={tmp_path}' in ended
  disk(False)
  assert save(39_200)
  assert unsaved.now(tmp_path) == unsaved.at_end(tmp_path) == ''


def test_a_mark_may_be_empty_and_a_file_without_arrays(tmp_path, disk):
  (tmp_path / 'metrics').mkdir()
  state = tmp_path / 'metrics' / checkpoints.COUNTER
  checkpoints.write_state(state, {'totals': {}})
  disk(True)
  with pytest.raises(OSError):
    checkpoints.write_state(state, {'totals': {}})
  durable.unsaved(state).write_text('')  # there was no room for a reason
  assert unsaved.now(tmp_path).endswith(': counter.json')
  assert 'there is counter.json (' in unsaved.at_end(tmp_path)


def test_what_a_run_goes_on_with_is_said_if_its_last_save_failed(
  tmp_path, disk, save
):
  _count(tmp_path, learner_0=39_128).close()
  save(10_776)
  disk(True)
  save(39_128)
  save(39_128, checkpoints.AGENTS)  # of which no run goes on
  said = []
  for _ in range(2):  # a start that is refused after this leaves it to the next
    unsaved.check(tmp_path, said.append)
  assert len(said) == 2
  assert 'goes on with learner-0.npz of update 10,776' in said[1]
  unsaved.forget(tmp_path)
  unsaved.check(tmp_path, said.append)
  assert len(said) == 2 and unsaved.at_end(tmp_path) == ''


def test_a_learner_that_was_never_saved_is_said_and_goes_on_anew(
  tmp_path, save
):
  # Killed: there is no summary.
  _count(tmp_path, learner_0=7, learner_1=1160, actor_0=0)
  save(7)
  said = []
  unsaved.check(tmp_path, said.append)
  assert len(said) == 1
  assert (
    'no checkpoint of learner/1 (1,160 updates) was ever written' in said[0]
  )
  save(1160, 'learner-1.npz')
  unsaved.check(tmp_path, said.append)
  assert len(said) == 1


def test_a_run_that_ended_without_a_learner_is_refused(tmp_path, disk, save):
  _count(tmp_path, learner_0=1160).close()
  metrics.write_json(tmp_path / 'summary.json', {'finished': True})
  said = []
  with pytest.raises(durable.Broken, match='learner/0 .1,160 updates.*new run'):
    unsaved.check(tmp_path, said.append)
  assert said == []
  disk(True)
  save(1160)
  ended = unsaved.at_end(tmp_path)
  assert 'there is no learner-0.npz' in ended and 'a new run' in ended
  disk(False)
  save(1160)
  unsaved.check(tmp_path, said.append)
  assert said == []


def test_the_master_of_evolution_strategies_is_known_by_its_file():
  assert unsaved.file_of('master/0') == evolution.CHECKPOINT
  assert unsaved.file_of('explorer/3') == 'explorer-3.npz'
