"""Saves that fail are said: in a run, at its end, and before a resume."""

import errno

import numpy as np
import pytest

from murmuration.launch.nodes import saves
from murmuration.launch.services import counter as counter_lib
from murmuration.launch.services import evolution
from murmuration.run_records import checkpoints
from murmuration.run_records import durable
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
  counter.close()


def test_a_failed_save_is_said_until_one_is_whole(tmp_path, disk, save):
  assert save(10_776) and unsaved.now(tmp_path) == ''
  disk(True)
  assert not save(20_000) and not save(39_128)
  for said in (unsaved.now(tmp_path), unsaved.at_end(tmp_path)):
    assert 'learner-0.npz' in said and 'No space left' in said
  disk(False)
  assert save(39_200)
  assert unsaved.now(tmp_path) == unsaved.at_end(tmp_path) == ''


def test_the_counts_of_a_run_are_among_what_must_be_saved(tmp_path, disk):
  (tmp_path / 'metrics').mkdir()
  state = tmp_path / 'metrics' / checkpoints.COUNTER
  disk(True)
  with pytest.raises(OSError):
    checkpoints.write_state(state, {'totals': {}})
  assert checkpoints.COUNTER in unsaved.at_end(tmp_path)


def test_a_resumed_run_says_it_and_is_judged_by_its_own_saves(
  tmp_path, disk, save
):
  _count(tmp_path, learner_0=39_128)
  save(10_776)
  disk(True)
  save(39_128)
  said = []
  for _ in range(2):  # a start that is refused after this leaves it to the next
    unsaved.check(tmp_path, said.append)
  assert len(said) == 2 and all('learner-0.npz' in x for x in said)
  unsaved.forget(tmp_path)
  unsaved.check(tmp_path, said.append)
  assert len(said) == 2 and unsaved.at_end(tmp_path) == ''


def test_a_learner_without_a_checkpoint_does_not_begin_anew_in_silence(
  tmp_path, save
):
  _count(tmp_path, learner_0=7, learner_1=1160, actor_0=0)
  save(7)
  said = []
  unsaved.check(tmp_path, said.append)
  assert len(said) == 1 and 'learner/1' in said[0] and '1,160' in said[0]
  save(1160, 'learner-1.npz')
  unsaved.check(tmp_path, said.append)
  assert len(said) == 1


def test_counts_that_are_gone_do_not_begin_anew_in_silence(tmp_path, save):
  said = []
  unsaved.check(tmp_path, said.append)
  assert said == []
  save(7)
  unsaved.check(tmp_path, said.append)
  assert len(said) == 1 and checkpoints.COUNTER in said[0]


class Ring:
  def save(self):
    return {'rows': np.ones(3)}


def test_what_a_run_can_go_on_without_is_no_failure_of_it(tmp_path, disk, save):
  _count(tmp_path, worker_0=39_128)
  save(39_128, 'worker-0.npz')
  rings = saves.Rings(str(tmp_path), 'worker/0', [Ring()])
  replay = saves.ReplaySaves([rings], 0.0)
  disk(True)
  names = (checkpoints.BEST, checkpoints.STAR, checkpoints.AGENTS)
  assert not any(save(900, name) for name in names)
  assert not replay.save(39_128)
  assert unsaved.at_end(tmp_path) == ''
  said = []
  unsaved.check(tmp_path, said.append)
  for text in (unsaved.now(tmp_path), *said):
    assert 'ring-worker-0-0.npz' in text and all(name in text for name in names)
  assert not save(40_000, 'worker-0.npz')
  ended = unsaved.at_end(tmp_path)
  assert 'worker-0.npz' in ended and 'best' not in ended
  disk(False)
  assert replay.save(39_128)
  assert 'ring' not in unsaved.now(tmp_path)


def test_a_mark_that_is_listed_and_gone_says_nothing(tmp_path, save):
  save(7)
  mark = tmp_path / 'checkpoints' / 'learner-0.npz.unsaved'
  mark.symlink_to('gone')  # a listing shows it, and it cannot be opened
  assert unsaved.now(tmp_path) == unsaved.at_end(tmp_path) == ''


def test_the_master_of_evolution_strategies_is_known_by_its_file():
  assert unsaved.file_of('master/0') == evolution.CHECKPOINT
  assert unsaved.file_of('explorer/3') == 'explorer-3.npz'
