"""Temporary directories that last as long as their run."""

import fcntl
import os

import pytest

from launch.engines import scratch
from launch.engines.cluster import join


def is_cleaned(path):
  """Whether systemd-tmpfiles would enter it: it locks what it cleans."""
  found = os.open(path, os.O_RDONLY)
  try:
    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
  except BlockingIOError:
    return False
  finally:
    os.close(found)


@pytest.mark.parametrize('make', [scratch.Scratch, join._directory])
def test_what_a_run_needs_is_not_cleaned_up_while_it_lasts(make, tmp_path):
  assert is_cleaned(tmp_path)
  with make() as path:
    assert not is_cleaned(path)
  assert not os.path.exists(path)


def test_a_directory_that_is_removed_is_let_go_once(tmp_path, monkeypatch):
  close = os.close
  made = scratch.Scratch('a-', str(tmp_path))
  (made.path / 'file').touch()
  closed = []
  monkeypatch.setattr(os, 'close', lambda fd: closed.append(fd) or close(fd))
  held = made._held
  made.remove()
  made.remove()
  assert list(tmp_path.iterdir()) == []
  assert closed.count(held) == 1


def killed(*arguments):
  """A directory whose run was killed: no lock is left on it."""
  made = scratch.Scratch(*arguments)
  (made.path / 'job.pkl').touch()
  os.close(made._held)
  return made.path


def test_a_run_removes_what_killed_runs_left_and_nothing_else(
  tmp_path, monkeypatch
):
  kept = [tmp_path / 'murmuration-main', tmp_path / 'murmuration-00abcdef']
  for path in kept:
    path.mkdir()
  with monkeypatch.context() as patch:
    patch.setattr(scratch.socket, 'gethostname', lambda: 'another')
    kept.append(killed('murmuration-', tmp_path))
  left = killed('murmuration-', tmp_path)
  linked = left.with_name(f'{left.name}x')
  linked.symlink_to(tmp_path / 'murmuration-main')
  with scratch.Scratch('murmuration-', tmp_path) as living:
    assert not left.exists()
    with scratch.Scratch('murmuration-', tmp_path) as path:
      assert {*tmp_path.iterdir()} == {*kept, linked, living, path}


def test_what_other_users_left_is_theirs(tmp_path, monkeypatch):
  left = killed('a-', tmp_path)
  monkeypatch.setattr(os, 'geteuid', lambda: os.getuid() + 1)
  with scratch.Scratch('a-', tmp_path):
    assert left.exists()


def test_a_directory_that_is_swept_before_it_is_locked_is_made_again(
  tmp_path, monkeypatch
):
  make, made = scratch.tempfile.mkdtemp, []

  def swept(**named):
    path = make(**named)
    made.append(path)
    if len(made) == 1:
      os.rmdir(path)
    return path

  flock = fcntl.flock

  def slow(held, how):
    if how == fcntl.LOCK_SH and len(made) == 2:
      os.rmdir(made[1])
    flock(held, how)

  monkeypatch.setattr(scratch.tempfile, 'mkdtemp', swept)
  monkeypatch.setattr(fcntl, 'flock', slow)
  with scratch.Scratch('a-', tmp_path) as path:
    assert str(path) == made[2] and not is_cleaned(path)
