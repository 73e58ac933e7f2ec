"""When a batch of requests is worth its forward pass, on a clock of our own."""

import pytest

from launch.services.inference import batching
from launch.services.inference import figures

WAIT, ROWS = 0.002, 4


def _batcher(enough=None, max_rows=None):
  return batching.Batcher(WAIT, enough, max_rows)


def _known(actors, now=0.0, **options):
  """A batcher that has heard of these actors."""
  batcher = _batcher(**options)
  for actor in actors:
    batcher.add(actor, ROWS, now)
  while len(batcher):
    batcher.take(now)
  return batcher


@pytest.mark.parametrize(
  'actors, rows', [(1, ROWS), (2, ROWS), (3, 2 * ROWS), (8, 4 * ROWS)]
)
def test_half_of_the_actors_are_rounded_up(actors, rows):
  assert batching.half(actors, ROWS) == rows


def test_nothing_is_due_where_nobody_asks():
  batcher = _known([])
  assert not batcher.due(1.0) and batcher.wait_s(1.0) is None


def test_a_batch_is_due_when_all_have_asked():
  batcher = _known([0, 1])
  batcher.add(1, ROWS, 0.001)
  assert not batcher.due(0.001)
  batcher.add(0, ROWS, 0.001)
  assert batcher.due(0.001)
  assert batcher.take(0.001) == [1, 0]
  assert not batcher.due(0.001) and len(batcher) == 0


def test_nobody_waits_longer_than_the_longest_wait():
  batcher = _known([0, 1])
  batcher.add(0, ROWS, 0.001)
  assert batcher.wait_s(0.0015) == pytest.approx(WAIT - 0.0005)
  assert not batcher.due(0.001 + 0.99 * WAIT)
  assert batcher.due(0.001 + 1.01 * WAIT)
  assert batcher.wait_s(1.0) == 0.0


def test_who_was_silent_for_long_is_not_waited_for_until_he_speaks():
  batcher = _known([0, 1])
  late = 11 * WAIT
  batcher.add(0, ROWS, late)
  assert batcher.due(late)
  batcher.take(late)
  batcher.add(1, ROWS, late)
  assert not batcher.due(late)  # 0 was here just now
  batcher.take(late)
  batcher.add(0, ROWS, late)
  assert not batcher.due(late)  # and so was 1


def test_who_has_left_is_not_waited_for():
  batcher = _known([0, 1])
  batcher.add(0, ROWS, 0.0)
  batcher.drop(1)
  assert batcher.due(0.0)
  batcher.drop(0)
  assert not batcher.due(1.0) and len(batcher) == 0


@pytest.mark.parametrize(
  'max_rows, batches', [(2 * ROWS, [[2, 0], [1]]), (None, [[2, 0, 1], []])]
)
def test_enough_rows_are_enough_and_more_go_along(max_rows, batches):
  batcher = _known([0, 1, 2], enough=2 * ROWS, max_rows=max_rows)
  batcher.add(2, ROWS, 0.0)
  assert not batcher.due(0.0)
  batcher.add(0, ROWS, 0.0)
  assert batcher.due(0.0)
  batcher.add(1, ROWS, 0.0)
  assert [batcher.take(0.0), batcher.take(0.0)] == batches


def test_a_request_is_never_split_and_never_left():
  batcher = _batcher(ROWS - 1, max_rows=ROWS - 1)
  batcher.add(0, ROWS, 0.0)
  batcher.add(1, ROWS, 0.0)
  assert [batcher.take(0.0), batcher.take(0.0)] == [[0], [1]]


def test_without_a_wait_each_request_is_due_at_once():
  batcher = batching.Batcher(0.0)
  batcher.add(0, ROWS, 0.0)
  batcher.add(1, ROWS, 0.0)
  batcher.take(0.0)
  batcher.add(0, ROWS, 1.0)
  assert batcher.due(1.0)


def test_figures_are_those_since_the_last_report():
  now = [0.0]
  counts = figures.Figures(lambda: now[0])
  for _ in range(2):
    for i in range(100):
      counts.answered((i + 1) / 1000)
    counts.batch(rows=60, passes=1, seconds=0.002)
    counts.batch(rows=40, passes=3, seconds=0.004)
    now[0] += 2.0
    numbers = counts.take()
    assert numbers['requests_per_s'] == 50.0
    assert numbers['mean_batch'] == 50.0
    assert numbers['passes_per_step'] == pytest.approx(0.04)
    assert numbers['pass_ms'] == pytest.approx(3.0)
    assert numbers['wait_p99_ms'] == pytest.approx(99.01)
  now[0] += 1.0
  assert counts.take() == {
    'requests_per_s': 0.0, 'refused_requests': 0
  }  # fmt: skip


def test_a_percentile_is_of_the_latest_requests():
  counts = figures.Figures()
  for wait_s in [1.0] * 10 + [0.001] * 5000:
    counts.answered(wait_s)
  counts.batch(rows=5010, passes=1, seconds=0.0)
  assert counts.take()['wait_p99_ms'] == pytest.approx(1.0)
