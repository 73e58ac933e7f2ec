"""Checkpoints that fail are said: in a run, at its end, and before a resume."""

import errno
import os

import numpy as np
import pytest

from murmuration.launch.nodes import saves
from murmuration.launch.services import counter as counter_lib
from murmuration.launch.services import evolution
from murmuration.run_records import checkpoints
from murmuration.run_records import durable
from murmuration.run_records import jsonable
from murmuration.run_records import unsaved


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
  counter.snapshot()  # as the live view does: what is shown is saved
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
  assert 'there is learner-0.npz (' in ended
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
  assert 'goes on with learner-0.npz (' in said[1]
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
  jsonable.write(tmp_path / 'summary.json', {'finished': True})
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


@pytest.mark.parametrize('before', [True, False])
def test_what_is_only_played_is_no_failure_of_a_run(
  tmp_path, disk, save, before
):
  _count(tmp_path, worker_0=39_128).close()
  names = (checkpoints.BEST, checkpoints.STAR, checkpoints.AGENTS)
  save(39_128, 'worker-0.npz')
  if before:
    assert all(save(500, name) for name in names)
  disk(True)
  assert not any(save(900, name) for name in names)
  assert unsaved.at_end(tmp_path) == ''
  (said,) = unsaved.besides(tmp_path)
  assert 'the newest agents.npz, best.npz, star.npz could not be' in said
  there = 'best.npz (' if before else 'no best.npz'
  assert there in said and 'No space left' in said
  assert 'goes on' not in said and 'new run' not in said
  said = []
  unsaved.check(tmp_path, said.append)
  assert said == []
  now = unsaved.now(tmp_path)
  assert now.startswith('not written since') and 'best.npz' in now
  assert not save(40_000, 'worker-0.npz')
  assert unsaved.now(tmp_path).startswith('checkpoints fail since')
  ended = unsaved.at_end(tmp_path)
  assert 'worker-0.npz (' in ended and 'best' not in ended


@pytest.mark.parametrize('before', [True, False])
def test_replay_in_a_worker_that_was_not_kept_is_said_and_is_no_failure(
  tmp_path, disk, save, before
):
  class Ring:
    def save(self):
      return {'rows': np.ones(3)}

  _count(tmp_path, worker_0=39_128).close()
  save(39_128, 'worker-0.npz')
  rings = saves.Rings(str(tmp_path), 'worker/0', [Ring()])
  replay = saves.ReplaySaves([rings], 0.0)
  if before:
    assert replay.save(10)
  disk(True)
  assert not replay.save(39_128)
  assert unsaved.at_end(tmp_path) == ''
  (said,) = unsaved.besides(tmp_path)
  there = (
    'what ring-worker-0-0.npz has ('
    if before
    else 'an empty replay (no ring-worker-0-0'
  )
  why = 'replay was not kept (No space left on device): '
  assert f'{why}a resume begins with {there}' in said
  resumed = []
  unsaved.check(tmp_path, resumed.append)
  assert resumed == [f'{said}.']
  disk(False)
  assert replay.save(39_128) and unsaved.besides(tmp_path) == []


def test_a_new_run_is_asked_for_only_if_a_learner_has_no_file(
  tmp_path, disk, save
):
  _count(tmp_path, worker_0=39_128).close()
  save(10_776, 'worker-0.npz')
  disk(True)
  save(39_128, 'worker-0.npz')
  save(3, checkpoints.STAR_SERVER)  # which begins anew, if it must
  ended = unsaved.at_end(tmp_path)
  assert 'there is no star_server.npz, worker-0.npz (' in ended
  assert f'--resume={tmp_path}' in ended and 'new run' not in ended
  (tmp_path / 'checkpoints' / 'worker-0.npz').unlink()
  assert unsaved.at_end(tmp_path).endswith('Then start a new run')


def test_a_mark_that_is_listed_and_gone_says_nothing(tmp_path, save):
  save(7)
  mark = tmp_path / 'checkpoints' / 'learner-0.npz.unsaved'
  mark.symlink_to('gone')  # a listing shows it, and it cannot be opened
  said = []
  unsaved.check(tmp_path, said.append)
  assert said == [] and unsaved.at_end(tmp_path) == ''


def test_a_mark_that_cannot_be_made_hides_neither_the_reason_nor_the_end(
  tmp_path, monkeypatch, save
):
  jsonable.write(tmp_path / 'summary.json', {'finished': False})
  assert save(7) and unsaved.ended(tmp_path)

  def read_only(*unused):
    raise OSError(errno.EROFS, 'Read-only file system')

  unsaved.forget(tmp_path)  # it is resumed
  with monkeypatch.context() as patch:
    patch.setattr(durable, 'replace', read_only)
    patch.setattr(durable, 'open', read_only, raising=False)
    with pytest.raises(OSError, match='Read-only'):
      checkpoints.write(tmp_path / 'checkpoints' / 'learner-0.npz', updates=9)
    with pytest.raises(OSError, match='Read-only'):
      jsonable.write(tmp_path / 'summary.json', {'finished': True})
  assert unsaved.at_end(tmp_path) == ''  # nobody could say so
  assert not unsaved.ended(tmp_path)
  jsonable.write(tmp_path / 'summary.json', {'finished': False})
  assert unsaved.ended(tmp_path)


def test_the_master_of_evolution_strategies_is_known_by_its_file():
  assert unsaved.file_of('master/0') == evolution.CHECKPOINT
  assert unsaved.file_of('explorer/3') == 'explorer-3.npz'
