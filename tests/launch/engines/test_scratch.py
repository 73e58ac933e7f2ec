"""Temporary directories that last as long as their run."""

import fcntl
import os

from murmuration.launch.engines import scratch


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


def test_what_a_run_needs_is_not_cleaned_up_while_it_lasts(tmp_path):
  assert is_cleaned(tmp_path)
  with scratch.Scratch() as path:
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
