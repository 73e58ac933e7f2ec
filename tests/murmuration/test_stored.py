"""Copies of runs."""

import os
import pathlib

import pytest

from murmuration import runs


def test_a_run_that_trains_is_copied_without_what_is_being_written(tmp_path):
  run, copy = tmp_path / 'run', tmp_path / 'copy'
  (run / 'metrics').mkdir(parents=True)
  kept = ['config.json', 'metrics/counter.json', 'metrics/counter.json.older']
  for name in (*kept, 'launcher.json', 'metrics/.counter.json.12.older'):
    (run / name).write_text('{}')
  # What is gone when its turn comes looks like this: listed, and not there.
  for name in ('metrics/.counter.json.12.34', 'replay'):
    (run / name).symlink_to('nowhere')
  runs.load(run).save(copy)
  found = [str(p.relative_to(copy)) for p in copy.rglob('*') if p.is_file()]
  assert sorted(found) == kept
  os.mkfifo(run / 'pipe')
  with pytest.raises(OSError, match='named pipe'):
    runs.load(run).save(tmp_path / 'other')
  assert {path.name for path in tmp_path.iterdir()} == {'run', 'copy'}


def _kept(path, seed):
  (path / 'checkpoints').mkdir(parents=True)
  (path / 'config.json').write_text(f'{{"seed": {seed}}}')
  return runs.load(path)


def test_a_run_is_not_copied_into_itself(tmp_path):
  outer, inner = tmp_path / 'run', tmp_path / 'run' / 'checkpoints' / 'run'
  run, within = _kept(outer, 0), _kept(inner, 1)
  (tmp_path / 'link').symlink_to(outer)
  before = sorted(tmp_path.rglob('*'))
  for copied, path in (
    (run, outer / 'checkpoints' / 'copy'),
    (run, tmp_path / 'link' / 'copy'),
    (within, outer),
  ):
    with pytest.raises(ValueError, match='run'):
      copied.save(path, overwrite=True)
  assert sorted(tmp_path.rglob('*')) == before
  assert run.save(outer) == outer  # it is there already


def test_a_run_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
  run, there = _kept(tmp_path / 'run', 0), _kept(tmp_path / 'there', 1)
  link = tmp_path / 'link'
  link.symlink_to(there.path)
  rename = pathlib.Path.rename

  def fail(path, target):
    if path.name.endswith(str(os.getpid())):
      raise OSError('the disk is gone')
    return rename(path, target)

  with monkeypatch.context() as patched:
    patched.setattr(pathlib.Path, 'rename', fail)
    with pytest.raises(OSError, match='the disk is gone'):
      run.save(there.path, overwrite=True)
  assert there.path.joinpath('config.json').read_text() == '{"seed": 1}'
  assert run.save(link, overwrite=True) == link and link.is_symlink()
  assert there.path.joinpath('config.json').read_text() == '{"seed": 0}'
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'there', 'link'}


def test_an_interrupt_after_a_run_was_replaced_leaves_nothing(
  tmp_path, monkeypatch
):
  run, there = _kept(tmp_path / 'run', 0), _kept(tmp_path / 'there', 1)
  rename = pathlib.Path.rename

  def interrupted(path, target):
    rename(path, target)
    if path.name.endswith(str(os.getpid())):
      raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(pathlib.Path, 'rename', interrupted)
    with pytest.raises(KeyboardInterrupt):
      run.save(there.path, overwrite=True)
  assert there.path.joinpath('config.json').read_text() == '{"seed": 0}'
  assert {p.name for p in tmp_path.iterdir()} == {'run', 'there'}


def test_saving_again_says_how(tmp_path):
  path = tmp_path / 'run'
  path.mkdir()
  (path / 'config.json').write_text('{}')
  run = runs.load(path)
  run.save(tmp_path / 'kept')
  with pytest.raises(FileExistsError, match='overwrite=True'):
    run.save(tmp_path / 'kept')
  (path / 'newer').touch()
  run.save(tmp_path / 'kept', overwrite=True)
  assert (tmp_path / 'kept' / 'newer').exists()
  assert run.save(path, overwrite=True) == path and path.exists()
  (tmp_path / 'other').mkdir()
  with pytest.raises(FileExistsError, match='is no run'):
    run.save(tmp_path / 'other', overwrite=True)
