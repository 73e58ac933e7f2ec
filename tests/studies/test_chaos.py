"""The monkey of `make chaos`, for a moment."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_survives_a_few_kills_and_stops(tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      str(ROOT / 'studies' / 'chaos.py'),
      '--systems=apex',
      '--events=4',
      f'--out={tmp_path}',
    ],
    capture_output=True,
    text=True,
    timeout=390,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'BROKEN' not in done.stdout
  assert '50,000 of 50,000' in done.stdout
