"""Tables: what they are made of, and what they refuse."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.replay import tables

SIGNATURE = tf.TensorSpec([1], tf.float32)


def test_a_uniform_table_drops_its_oldest_and_waits_for_min_size(serve):
  table = tables.uniform('table', 3, 2, SIGNATURE)
  client = serve(table).localhost_client()
  client.insert(np.zeros(1, np.float32), {'table': 1.0})
  assert not table.can_sample(1)
  for value in range(1, 6):
    client.insert(np.full(1, value, np.float32), {'table': 1.0})
  assert table.can_sample(1)
  assert table.info.current_size == 3
  values = {float(s[0].data[0][0]) for s in client.sample('table', 200)}
  assert values == {3.0, 4.0, 5.0}


def test_a_prioritized_table_raises_the_stored_priority_itself(serve):
  client = serve(
    tables.prioritized('table', 10, 1, SIGNATURE, priority_exponent=0.5)
  ).localhost_client()
  for priority in (1.0, 4.0):
    client.insert(np.full(1, priority, np.float32), {'table': priority})
  for sample in client.sample('table', 50):
    wanted = {1.0: 1 / 3, 4.0: 2 / 3}[float(sample[0].data[0][0])]
    assert sample[0].info.probability == pytest.approx(wanted)


def test_a_queue_gives_each_item_once_in_order_and_blocks_when_full(serve):
  table = tables.queue('queue', 5, SIGNATURE)
  client = serve(table).localhost_client()
  for value in range(5):
    client.insert(np.full(1, value, np.float32), {'queue': 1.0})
  assert not table.can_insert(1)
  values = [float(s[0].data[0][0]) for s in client.sample('queue', 5)]
  assert values == [0.0, 1.0, 2.0, 3.0, 4.0]
  assert table.info.current_size == 0


def test_a_table_too_small_for_its_first_sample_is_refused():
  with pytest.raises(ValueError, match='min_size=11'):
    tables.prioritized('table', 10, 11, SIGNATURE)
