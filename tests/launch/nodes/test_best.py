"""Which parameters of a run are kept as its best."""

import contextlib
import errno

import numpy as np
import pytest

from murmuration.launch import reporting
from murmuration.launch.nodes import best
from murmuration.run_records import checkpoints
from murmuration.run_records import durable
from murmuration.run_records import unsaved
from tests.launch.nodes import experiments


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


@pytest.fixture
def full(monkeypatch):
  """full(): has a disk take no file, in a `with`."""

  def replace(*args):
    raise OSError(errno.ENOSPC, 'No space left on device')

  @contextlib.contextmanager
  def full():
    with monkeypatch.context() as patch:
      patch.setattr(durable, 'replace', replace)
      yield

  return full


@pytest.mark.parametrize('mean', [5.0, np.nan])
def test_what_a_full_disk_did_not_take_is_written_with_the_next_offer(
  tmp_path, full, mean
):
  keeper = best.Best(tmp_path)
  keeper.offer(np.zeros(3), 1.0, 1)
  theta = np.full(3, 2.0)
  with full():
    keeper.offer(theta, 9.0, 2)
    theta[:] = 7.0  # the learner's own
    assert checkpoints.BEST in unsaved.now(tmp_path)
  assert _kept(tmp_path) == 0
  keeper.offer(np.full(3, 3), mean, 3)  # ranks lower
  assert _kept(tmp_path) == 2
  assert unsaved.now(tmp_path) == ''


def test_what_a_full_disk_did_not_take_is_written_at_the_end(
  tmp_path, full, make_counter
):
  experiment = experiments.cartpole(num_agents=1, run_dir=str(tmp_path))
  evaluation = best.SelfEvaluation(
    experiment,
    experiment.make_agent(),
    [experiment.actor_info(0)],
    reporting.Reporter('worker/0', make_counter()),
    should_stop=lambda: True,
  )
  with full():
    evaluation._judge._best.offer(np.full(3, 2.0), 9.0, 2)
  evaluation._judge.played_at = 2
  evaluation.last(np.zeros((1, 3)), 2)  # played already
  evaluation.close()
  assert _kept(tmp_path) == 2
  with full():
    evaluation._judge._best.offer(np.full(3, 3.0), 9.0, 3)
  agent = experiment.make_agent()
  evaluation.last(np.zeros((1, agent.layout.size), np.float32), 9)  # cut
  evaluation.close()
  assert _kept(tmp_path) == 3


def test_a_best_that_was_lost_with_its_node_is_said_once(
  tmp_path, full, caplog
):
  kept = best.Best(tmp_path)
  with full():
    kept.offer(np.zeros(3), 8.0, 10)
  best.Best(tmp_path)
  assert 'of an earlier start could not be written' in caplog.text
  caplog.clear()
  best.Best(tmp_path)
  assert not caplog.records


def test_one_that_is_broken_is_begun_anew(tmp_path, caplog):
  best.Best(tmp_path).offer(np.zeros(3), 8.0, 10)
  (tmp_path / 'checkpoints' / checkpoints.BEST).write_bytes(b'PK no zip')
  best.Best(tmp_path).offer(np.ones(3), 7.0, 20)
  assert _kept(tmp_path) == 1
  assert 'written anew' in caplog.text
