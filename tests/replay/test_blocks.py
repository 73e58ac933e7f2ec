"""Blocks against a record of every step, through a real Reverb server."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

from murmuration.replay import adders
from murmuration.replay import blocks
from murmuration.replay import packing
from murmuration.replay import readers
from murmuration.replay import tables
from murmuration.replay import writer as writer_lib

T, K = 4, 3


class Step(NamedTuple):
  observation: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  last: np.ndarray
  next_observation: np.ndarray
  valid: np.ndarray | None = None


def _steps(count, layout, seed=0, ends=0.3):
  """What `add` is given at each step, everything different everywhere."""
  rng = np.random.default_rng(seed)
  shape = (layout.num_envs, *layout.observation_shape)

  def observations():
    if layout.observation_dtype == 'uint8':
      return rng.integers(0, 256, shape, np.uint8)
    return rng.normal(size=shape).astype(np.float32)

  number, found = layout.num_envs, []
  observation = observations()
  for index in range(count):
    if layout.discrete:
      action = rng.integers(0, 1000, number, np.int32)
    else:
      action = rng.normal(size=(number, *layout.action_shape))
      action = action.astype(np.float32)
    last = rng.random(number) < ends
    arrival, begun = observations(), observations()
    step = Step(
      arrival,
      rng.normal(size=number).astype(np.float32),
      np.where(last & (rng.random(number) < 0.5), 0, 1).astype(np.float32),
      last,
      np.where(
        last.reshape(-1, *[1] * len(layout.observation_shape)), begun, arrival
      ),
    )
    behaviour = rng.normal(size=(number, layout.behaviour_size))
    core = rng.normal(size=(number, layout.core_size))
    found.append(
      (
        observation,
        action,
        step,
        behaviour.astype(np.float32),
        core.astype(np.float32),
        10**10 + index,
      )
    )
    observation = step.next_observation
  return found


def _expected(record, layout):
  """The blocks of a record, one number at a time, but for written_at."""
  result = []
  length = layout.unroll_length
  for start in range(0, len(record) - length + 1, length):
    rows = record[start : start + length]
    block = layout.zeros()
    block.core[...] = rows[0][4]
    block.version[...] = rows[0][5]
    for t, (observation, action, step, behaviour, _, _) in enumerate(rows):
      block.observation[t] = observation
      block.action[t] = action
      block.behaviour[t] = behaviour
      for name in ('reward', 'discount', 'last'):
        getattr(block, name)[t] = getattr(step, name)
    block.observation[length] = rows[-1][2].next_observation
    for k in range(layout.num_envs):
      cut = [
        t
        for t, row in enumerate(rows)
        if row[2].last[k] and row[2].discount[k] == 1
      ]
      for number, t in enumerate(cut):
        if number < layout.max_truncations:
          block.final_observation[number, k] = rows[t][2].observation[k]
        else:
          block.valid[t, k] = False
    result.append(block)
  return result


def _assert_equal(got, expected, truncated_only=True):
  for name in blocks.Block._fields:
    a, b = getattr(got, name), getattr(expected, name)
    if name == 'written_at':
      assert packing.age_s(a) < 60
      continue
    if name == 'final_observation' and truncated_only:
      # Where no time limit was, it is what was there before.
      cut = expected.last & (expected.discount > 0) & expected.valid
      cut = cut.sum(axis=0) > np.arange(len(a))[:, None]
      a, b = a[cut], b[cut]
    assert a.dtype == b.dtype, name
    np.testing.assert_array_equal(a, b, err_msg=name)


LAYOUTS = [
  blocks.BlockLayout(T, K, (2,), core_size=5),
  blocks.BlockLayout(T, K, (2, 3), (2,), discrete=False, behaviour_size=4),
  blocks.BlockLayout(T, K, (4, 4, 1), observation_dtype='uint8'),
  blocks.BlockLayout(T, K, (2,), max_episode_steps=1),
]


def _taken(client):
  """All blocks of the queue."""
  count = client.server_info()['queue'].current_size
  samples = client.sample('queue', count, emit_timesteps=False)
  return [blocks.Block(*sample.data) for sample in samples]


def _written(serve, layout, record, joined=1):
  """Everything that a queue gives back after `record`, in order."""
  server = serve(tables.queue('queue', 100, layout.signature(joined)))
  client = server.localhost_client()
  adder = adders.BlockAdder(client, 'queue', layout, joined=joined)
  try:
    number = sum(adder.add(*row) for row in record)
    adder.flush()
  finally:
    adder.close()
  found = _taken(client)
  assert len(found) == number
  return found


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_step_is_written_once_in_its_place(serve, layout):
  record = _steps(6 * T, layout)
  expected = _expected(record, layout)
  ends = np.concatenate([block.last.ravel() for block in expected])
  alive = np.concatenate([block.discount.ravel() for block in expected])
  assert (ends & (alive == 0)).any() and (ends & (alive == 1)).any()
  assert layout.max_truncations > 1 or not all(
    block.valid.all() for block in expected
  ), 'two in one block'
  got = _written(serve, layout, record)
  assert len(got) == len(expected) == 6
  for one, other in zip(got, expected):
    _assert_equal(one, other)


def test_several_blocks_in_one_item_are_those_that_follow_one_another(serve):
  layout, joined = LAYOUTS[0], 3
  record = _steps(7 * T, layout)
  expected = _expected(record, layout)
  got = _written(serve, layout, record, joined)
  assert len(got) == 2, 'the seventh block is in no whole item'
  for index, item in enumerate(got):
    for number in range(joined):
      _assert_equal(
        blocks.Block(*(column[number] for column in item)),
        expected[index * joined + number],
      )


def test_a_reset_drops_all_blocks_of_an_open_item(serve):
  layout = LAYOUTS[0]
  server = serve(tables.queue('queue', 100, layout.signature(2)))
  client = server.localhost_client()
  adder = adders.BlockAdder(client, 'queue', layout, joined=2)
  for row in _steps(T + 1, layout, seed=1):
    assert adder.add(*row) == 0
  adder.reset()
  record = _steps(2 * T, layout)
  assert sum(adder.add(*row) for row in record) == 1
  adder.flush()
  (got,) = _taken(client)
  for number, expected in enumerate(_expected(record, layout)):
    _assert_equal(blocks.Block(*(c[number] for c in got)), expected)
  adder.close()


def test_an_unfinished_block_is_never_written(serve):
  layout = LAYOUTS[0]
  record = _steps(2 * T + 1, layout)
  got = _written(serve, layout, record[: 2 * T - 1])
  assert len(got) == 1
  _assert_equal(got[0], _expected(record, layout)[0])


def test_after_a_reset_a_block_begins_with_the_next_step(serve, caplog):
  layout = LAYOUTS[0]
  server = serve(tables.queue('queue', 100, layout.signature()))
  adder = adders.BlockAdder(server.localhost_client(), 'queue', layout)
  record = _steps(T, layout, ends=0.9)
  # Two time limits of one environment, before the reset and after it, are in
  # two blocks.
  for row in _steps(T - 1, layout, seed=1, ends=1.0):
    assert adder.add(*row) == 0
  adder.reset()
  assert sum(adder.add(*row) for row in record) == 1
  adder.flush()
  (got,) = _taken(server.localhost_client())
  (expected,) = _expected(record, layout)
  _assert_equal(got, expected)
  assert not expected.valid.all()
  assert caplog.text.count('max_episode_steps') == 1
  adder.close()


def test_a_step_that_is_no_experience_is_marked_and_has_no_true_end(serve):
  layout = LAYOUTS[0]
  record = _steps(T, layout, ends=0.0)
  for t, valid in ((1, [True, False, True]), (2, [True] * 3)):
    row = list(record[t])
    valid = np.array(valid)
    # A time limit of the same environment came before the broken step.
    row[2] = row[2]._replace(valid=valid, last=~valid)
    record[t] = tuple(row)
  cut = np.array([False, True, False])
  first = list(record[0])
  first[2] = first[2]._replace(last=cut, discount=np.ones(K, np.float32))
  record[0] = tuple(first)
  (got,) = _written(serve, layout, record)
  valid = np.ones((T, K), bool)
  valid[1, 1] = False
  np.testing.assert_array_equal(got.valid, valid)
  np.testing.assert_array_equal(
    got.final_observation[0, 1], first[2].observation[1]
  )


def test_a_batch_has_the_columns_of_a_block(serve):
  layout = LAYOUTS[0]
  server = serve(tables.queue('queue', 100, layout.signature()))
  client = server.localhost_client()
  adder = adders.BlockAdder(client, 'queue', layout)
  record = _steps(2 * T, layout)
  for row in record:
    adder.add(*row)
  # The signature is asked of the server.
  batch = next(iter(readers.make_dataset(client.server_address, 'queue', 2)))
  got = blocks.Block(*batch.data)
  signature = layout.signature()
  for column, spec in zip(got, signature):
    assert column.shape == (2, *spec.shape) and column.dtype == spec.dtype
  np.testing.assert_array_equal(got.version, [10**10, 10**10 + T])
  adder.close()


def test_a_table_of_other_blocks_is_refused(serve):
  server = serve(tables.queue('queue', 100, LAYOUTS[0].signature()))
  with pytest.raises(ValueError, match="'queue' at"):
    adders.BlockAdder(server.localhost_client(), 'queue', LAYOUTS[1])


@pytest.mark.parametrize(
  ('place', 'value', 'message'),
  [
    (0, np.zeros((K, 3), np.float32), r'observation is float32 \[3, 3\]'),
    (0, np.zeros((1, 2), np.float32), r'observation is float32 \[1, 2\]'),
    (1, np.zeros(K, np.float32), r'action is float32 \[3\].*int32 \[3\]'),
    (3, np.zeros(K, np.float32), r'behaviour is float32 \[3\]'),
    (4, np.zeros((K, 1), np.float32), r'core is float32 \[3, 1\]'),
  ],
)
def test_arrays_that_do_not_fit_are_refused(serve, place, value, message):
  layout = LAYOUTS[0]
  server = serve(tables.queue('queue', 100, layout.signature()))
  adder = adders.BlockAdder(server.localhost_client(), 'queue', layout)
  row = list(_steps(1, layout)[0])
  row[place] = value
  with pytest.raises(ValueError, match=message):
    adder.add(*row)
  # Nor after a block of others that fit.
  assert sum(adder.add(*good) for good in _steps(T, layout)) == 1
  with pytest.raises(ValueError, match=message):
    adder.add(*row)
  adder.close()


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'unroll_length': 0}, 'unroll_length=0.*must be at least 1'),
    ({'num_envs': 0}, 'num_envs=0'),
    ({'observation_shape': (0,)}, 'observation_shape'),
    ({'core_size': -1}, 'core_size=-1 must not be negative'),
    ({'observation_dtype': 'float64'}, "'float64' must be float32 or uint8"),
    ({'max_episode_steps': 0}, 'max_episode_steps=0'),
  ],
)
def test_layouts_that_cannot_be_are_refused(options, message):
  numbers = {'unroll_length': T, 'num_envs': K, 'observation_shape': (2,)}
  with pytest.raises(ValueError, match=message):
    blocks.BlockLayout(**{**numbers, **options})


@pytest.mark.parametrize(
  ('limit', 'ends'), [(None, 1), (50, 1), (T, 1), (3, 2), (2, 2), (1, T)]
)
def test_a_block_has_room_for_each_end_that_a_time_limit_makes(limit, ends):
  layout = blocks.BlockLayout(T, K, (2,), max_episode_steps=limit)
  assert layout.zeros().final_observation.shape == (ends, K, 2)


def test_a_blocked_queue_says_so(serve):
  layout = LAYOUTS[0]
  server = serve(tables.queue('queue', 1, layout.signature()))
  options = writer_lib.WriteOptions(max_in_flight=1)
  adder = adders.BlockAdder(
    server.localhost_client(), 'queue', layout, options=options
  )
  adder._writer._options = dataclasses.replace(options, timeout_s=0.2)
  with pytest.raises(writer_lib.WriteBlocked, match="'queue' at"):
    for row in _steps(3 * T, layout):
      adder.add(*row)
  adder._writer.lost = 3
  assert adder.lost == 3
  adder.close()
