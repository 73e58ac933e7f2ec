"""Which parameters of a run are kept as its best."""

import errno

import numpy as np
import pytest

from launch.nodes import best
from run_records import checkpoints


def _kept(tmp_path):
  with np.load(tmp_path / 'checkpoints' / checkpoints.BEST) as saved:
    return float(saved['theta'][0])


@pytest.mark.parametrize(
  ('offers', 'kept'),
  [
    # (mean, steps, confirmed)
    ([(5, 1, False), (7, 2, False), (6, 3, False)], 1),
    ([(5, 2, False), (5, 1, False)], 0),  # of equals the later in steps
    ([(5, 1, False), (5, 2, False)], 1),
    ([(5, 1, True), (9, 2, False)], 0),  # what was confirmed counts more
    ([(5, 1, False), (np.nan, 2, False)], 0),
  ],
)
def test_the_best_of_what_was_evaluated_is_kept(tmp_path, offers, kept):
  keeper = best.Best(tmp_path)
  for i, offer in enumerate(offers):
    keeper.offer(np.full(3, i, np.float32), *offer)
  assert _kept(tmp_path) == kept


def test_a_resumed_run_keeps_what_was_better_before(tmp_path):
  best.Best(tmp_path).offer(np.zeros(3), 8.0, 10)
  again = best.Best(tmp_path)
  again.offer(np.ones(3), 7.0, 20)
  assert _kept(tmp_path) == 0
  again.offer(np.ones(3), 9.0, 30)
  assert _kept(tmp_path) == 1


def test_a_confirmed_return_counts_first_until_the_run_is_resumed(
  tmp_path,
):
  commands = tmp_path / 'command.txt'
  commands.write_text('run.py\n')
  best.Best(tmp_path).offer(np.zeros(3), 8.0, 10, confirmed=True)
  restarted = best.Best(tmp_path)
  restarted.offer(np.ones(3), 9.0, 20)
  assert _kept(tmp_path) == 0
  commands.write_text('run.py\nrun.py --resume\n')
  best.Best(tmp_path).offer(np.ones(3), 7.0, 30)
  assert _kept(tmp_path) == 0
  # Also where the evaluator was started again since.
  resumed = best.Best(tmp_path)
  resumed.offer(np.ones(3), 9.0, 40)
  assert _kept(tmp_path) == 1


def test_what_a_full_disk_did_not_take_is_not_what_is_kept(
  tmp_path, monkeypatch
):
  keeper = best.Best(tmp_path)
  keeper.offer(np.zeros(3), 1.0, 1)
  with monkeypatch.context() as patch:

    def full(*args, **options):
      raise OSError(errno.ENOSPC, 'No space left on device')

    patch.setattr(checkpoints, 'write', full)
    keeper.offer(np.full(3, 2), 9.0, 2)
  assert _kept(tmp_path) == 0
  keeper.offer(np.full(3, 3), 5.0, 3)
  assert _kept(tmp_path) == 3


def test_one_that_is_broken_is_begun_anew(tmp_path, caplog):
  best.Best(tmp_path).offer(np.zeros(3), 8.0, 10)
  (tmp_path / 'checkpoints' / checkpoints.BEST).write_bytes(b'PK no zip')
  best.Best(tmp_path).offer(np.ones(3), 7.0, 20)
  assert _kept(tmp_path) == 1
  assert 'written anew' in caplog.text
