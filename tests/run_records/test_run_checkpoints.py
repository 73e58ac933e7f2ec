"""Checkpoint files: whole, or not there; nothing is left beside them."""

import os
import signal
import subprocess
import sys

import numpy as np

from run_records import checkpoints

KILLED = """
import os, pathlib, signal, sys
import numpy as np
from run_records import checkpoints
np.savez = lambda file, **arrays: (
  file.write(b'half'), file.flush(), os.kill(os.getpid(), signal.SIGKILL)
)
checkpoints.write(pathlib.Path(sys.argv[1]), theta=np.ones(3))
"""


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
  path = checkpoints.directory(tmp_path) / checkpoints.STAR
  checkpoints.write(path, theta=np.zeros(2))
  done = subprocess.run([sys.executable, '-c', KILLED, str(path)], timeout=60)
  assert done.returncode == -signal.SIGKILL
  assert len(list(path.parent.iterdir())) == 2
  np.testing.assert_array_equal(np.load(path)['theta'], np.zeros(2))
  # Neither another file's, nor that of a writer that lives.
  other = path.with_name(f'.{checkpoints.AGENTS}.{os.getppid()}')
  living = path.with_name(f'.{path.name}.{os.getppid()}')
  for kept in (other, living):
    kept.write_bytes(b'half')
  checkpoints.write(path, theta=np.ones(2))
  np.testing.assert_array_equal(np.load(path)['theta'], np.ones(2))
  assert sorted(path.parent.iterdir()) == sorted([path, other, living])
