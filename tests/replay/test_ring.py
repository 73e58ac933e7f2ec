"""Replay in an order of our own: repeatable, and drawn as a table is."""

import numpy as np
import pytest

from murmuration.replay import ring as ring_lib


def make(max_size=8, batch_size=4, seed=0, exponent=None):
  return ring_lib.Ring(max_size, batch_size, (2,), np.float32, seed, exponent)


def fill(ring, first, last, priority=1.0):
  rows = np.arange(first, last, dtype=np.float32)[:, None] * np.ones(2)
  ring.extend(rows, [priority] * len(rows))


def drawn(ring):
  return next(ring).data.numpy()[:, 0].astype(int)


@pytest.mark.parametrize('exponent', [None, 0.6])
def test_the_same_seed_draws_the_same_items(exponent):
  rings = [make(seed=s, exponent=exponent) for s in (3, 3, 4)]
  found = []
  for ring in rings:
    fill(ring, 0, 8)
    found.append(np.stack([drawn(ring) for _ in range(20)]))
  np.testing.assert_array_equal(found[0], found[1])
  assert (found[0] != found[2]).any()


def test_the_oldest_leave_and_keys_name_the_item():
  ring = make(max_size=8, batch_size=200)
  fill(ring, 0, 5)
  assert len(ring) == 5 and set(drawn(ring)) == set(range(5))
  assert (next(ring).table_sizes == 5).all()
  fill(ring, 5, 13)
  assert len(ring) == 8
  sample = next(ring)
  items = sample.data.numpy()[:, 0].astype(int)
  assert set(items) == set(range(5, 13))
  # An item's key is its number of all that were written.
  np.testing.assert_array_equal(sample.keys, items)
  # What was drawn of those that left does not count for those in their place.
  np.testing.assert_array_equal(sample.times_sampled, np.bincount(items)[items])
  assert (sample.table_sizes == 8).all()
  np.testing.assert_allclose(sample.probabilities, 1 / 8, rtol=1e-6)
  # As a sampler of one shard has them.
  assert sample.keys.dtype == np.uint64 and not sample.shards.any()


def test_items_are_drawn_by_the_power_of_their_priority():
  ring = make(batch_size=20_000, exponent=0.5)
  for item, priority in enumerate([1.0, 4.0, 16.0, 0.0]):
    fill(ring, item, item + 1, priority)
  sample = next(ring)
  counts = np.bincount(sample.data.numpy()[:, 0].astype(int), minlength=4)
  np.testing.assert_allclose(
    counts / 20_000, [1 / 7, 2 / 7, 4 / 7, 0], atol=0.02
  )
  for item, chance in enumerate([1 / 7, 2 / 7, 4 / 7]):
    own = sample.data.numpy()[:, 0] == item
    np.testing.assert_allclose(sample.probabilities[own], chance, rtol=1e-6)


def test_where_all_priorities_are_zero_draws_are_uniform_as_in_a_table():
  ring = make(batch_size=200, exponent=0.5)
  fill(ring, 0, 4, priority=0.0)
  sample = next(ring)
  assert set(sample.data.numpy()[:, 0]) == set(range(4))
  np.testing.assert_allclose(sample.probabilities, 1 / 4)
  # One that is above 0 is the only one that is drawn.
  ring.give_back(sample, np.where(sample.keys == 2, 1e-6, 0.0))
  assert set(drawn(ring)) == {2}


class _Random:
  """Gives the same number in [0, 1) for each draw."""

  def __init__(self, number):
    self._number = number

  def random(self, count):
    return np.full(count, self._number)


def test_places_are_drawn_as_a_running_sum_of_the_weights_says():
  rng = np.random.default_rng(1)
  wanted = np.zeros(5000)
  weights = ring_lib.Weights(5000)
  for _ in range(20):
    places = rng.integers(0, 5000, 400)
    new = rng.random(400) * (rng.random(400) > 0.5)
    wanted[places] = new
    weights.set(places, new)
  bounds = np.cumsum(wanted)
  np.testing.assert_allclose(weights.total, bounds[-1])
  numbers = rng.random(10_000)
  drawn = weights.draw(numbers)
  assert (weights.get(drawn) > 0).all()
  assert (np.searchsorted(bounds, numbers * bounds[-1], 'right') == drawn).all()


@pytest.mark.parametrize('number', [0.0, np.nextafter(1.0, 0.0)])
def test_no_draw_gives_an_item_of_priority_zero(number):
  ring = make(exponent=1.0)
  for item, priority in enumerate([0.0, 1 / 3, 0.1, 0.0]):
    fill(ring, item, item + 1, priority)
  ring._rng = _Random(number)
  assert set(drawn(ring)) == ({2} if number else {1})


def test_a_priority_that_is_not_finite_becomes_the_largest_of_its_sample():
  ring = make(max_size=3, batch_size=64, exponent=1.0)
  fill(ring, 0, 3)
  sample = next(ring)
  new = np.array([1.0, 4.0, np.inf])
  ring.give_back(sample, new[sample.keys])
  np.testing.assert_array_equal(ring.save()['priorities'], [1.0, 4.0, 4.0])


def test_new_priorities_go_to_their_items_and_to_no_later_ones():
  ring = make(max_size=4, batch_size=64, exponent=1.0)
  fill(ring, 0, 4)
  sample = next(ring)
  fill(ring, 4, 6)  # in the places of 0 and 1
  # 2 is drawn no more, 3 has no new priority, 0 and 1 are gone.
  new = np.where(sample.keys == 2, 0.0, 100.0)
  new[sample.keys == 3] = np.nan
  ring.give_back(sample, new)
  after = next(ring)
  items = after.data.numpy()[:, 0]
  assert set(items) == {3, 4, 5}
  np.testing.assert_allclose(after.probabilities, 1 / 3, rtol=1e-6)


def test_a_restored_ring_draws_what_the_saved_one_would_have():
  ring = make(exponent=0.6)
  fill(ring, 0, 13)
  next(ring)
  saved = {name: value.copy() for name, value in ring.save().items()}
  again = make(seed=99, exponent=0.6)
  again.restore(saved)
  for _ in range(5):
    for wanted, got in zip(next(ring), next(again), strict=True):
      np.testing.assert_array_equal(got, wanted)


def test_a_ring_with_another_exponent_raises_all_priorities_to_it():
  ring = make(exponent=0.5)
  for item, priority in enumerate([1.0, 4.0]):
    fill(ring, item, item + 1, priority)
  again = make(batch_size=64, exponent=1.0)
  again.restore(ring.save())
  sample = next(again)
  items = sample.data.numpy()[:, 0].astype(int)
  assert set(items) == {0, 1}
  np.testing.assert_allclose(
    sample.probabilities, np.array([0.2, 0.8])[items], rtol=1e-6
  )


@pytest.mark.parametrize('exponent', [0.5, None])
def test_a_ring_that_an_older_version_saved_is_read_with_its_exponent(exponent):
  ring = make(exponent=exponent)
  for item, priority in enumerate([1.0, 4.0]):
    fill(ring, item, item + 1, priority)
  saved = ring.save()
  saved['powers'] = saved.pop('priorities') ** (exponent or 1.0)
  again = make(seed=99, exponent=exponent)
  again.restore(saved)
  np.testing.assert_allclose(again.save()['priorities'], [1.0, 4.0])
  np.testing.assert_array_equal(drawn(ring), drawn(again))


@pytest.mark.parametrize('size', [4, 8, 20])
@pytest.mark.parametrize('written', [3, 8, 13])
def test_a_ring_of_another_size_takes_the_newest_items(written, size):
  ring = make(max_size=8, exponent=1.0)
  for item in range(written):
    fill(ring, item, item + 1, priority=item + 1.0)
  again = make(max_size=size, batch_size=200, exponent=1.0)
  again.restore(ring.save())
  kept = range(max(0, written - min(8, size)), written)
  assert len(again) == len(kept) and set(drawn(again)) == set(kept)
  sample = next(again)
  items = sample.data.numpy()[:, 0]
  np.testing.assert_allclose(
    sample.probabilities, (items + 1) / sum(i + 1 for i in kept), rtol=1e-5
  )
  # And the oldest leave first, as before.
  fill(again, written, written + size - 1, priority=1000.0)
  assert written - 1 in again.save()['rows'][:, 0]
  assert len(again) == min(size, len(kept) + size - 1)


def test_an_empty_ring_is_restored_as_an_empty_one():
  again = make(exponent=1.0)
  again.restore(make(exponent=1.0).save())
  assert not len(again)
  fill(again, 0, 2)
  assert set(drawn(again)) <= {0, 1}


def test_a_ring_of_other_items_is_refused():
  ring = make()
  fill(ring, 0, 8)
  other = ring_lib.Ring(8, 4, (3,), np.float32, 0)
  with pytest.raises(ValueError, match='Resume with the same config'):
    other.restore(ring.save())


def test_a_ring_with_another_seed_draws_what_follows_from_it():
  rings = [make(seed=s) for s in (1, 2)]
  for ring in rings:
    fill(ring, 0, 8)
    next(ring)
    ring.reseed(3)
  first, second = (np.stack([drawn(r) for _ in range(20)]) for r in rings)
  np.testing.assert_array_equal(first, second)
