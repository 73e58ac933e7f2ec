"""When a batch of requests is worth its forward pass, on a clock of our own."""

import pytest

from murmuration.launch.services import inference

WAIT, ROWS, ALL = 0.002, 4, 1000


def _batcher(enough=ALL, max_rows=None):
  return inference.Batcher(WAIT, enough, max_rows)


def _known(actors, now=0.0, **options):
  """A batcher that has heard of these actors."""
  batcher = _batcher(**options)
  for actor in actors:
    batcher.add(actor, ROWS, now)
  while batcher.take(now):
    pass
  return batcher


def test_nothing_is_due_where_nobody_asks():
  batcher = _known([])
  assert not batcher.due(1.0) and batcher.wait_s(1.0) > 0


def test_a_batch_is_due_when_all_have_asked():
  batcher = _known([0, 1])
  batcher.add(1, ROWS, 0.001)
  assert not batcher.due(0.001)
  batcher.add(0, ROWS, 0.001)
  assert batcher.due(0.001)
  assert batcher.take(0.001) == [1, 0]
  assert not batcher.due(0.001) and batcher.take(0.001) == []


def test_nobody_waits_longer_than_the_longest_wait():
  batcher = _known([0, 1])
  batcher.add(0, ROWS, 0.001)
  assert batcher.wait_s(0.0015) == pytest.approx(WAIT - 0.0005)
  assert not batcher.due(0.001 + 0.99 * WAIT)
  assert batcher.due(0.001 + 1.01 * WAIT)
  assert batcher.wait_s(1.0) == 0.0


def test_a_silent_actor_is_not_waited_for_until_it_asks_again():
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


def test_a_dropped_actor_is_not_waited_for():
  batcher = _known([0, 1])
  batcher.add(0, ROWS, 0.0)
  batcher.drop(1)
  assert batcher.due(0.0)
  batcher.drop(0)
  assert not batcher.due(1.0) and batcher.take(1.0) == []


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
  batcher = inference.Batcher(0.0, ALL)
  batcher.add(0, ROWS, 0.0)
  batcher.add(1, ROWS, 0.0)
  batcher.take(0.0)
  batcher.add(0, ROWS, 1.0)
  assert batcher.due(1.0)
