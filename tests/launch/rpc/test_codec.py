"""launch/rpc/codec.py: what goes in comes out, and nothing else goes in."""

import collections
import struct
import tracemalloc

import hypothesis
from hypothesis import strategies
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest

from murmuration.launch.rpc import codec

Point = collections.namedtuple('Point', ['x', 'y'])


def encode(value):
  return b''.join(codec.encode_parts(value))


def round_trip(value):
  return codec.decode(encode(value))


def assert_same(got, want):
  assert type(got).__name__ == type(want).__name__
  if isinstance(want, np.ndarray | np.generic):
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)
  elif isinstance(want, dict):
    assert list(got) == list(want)
    for key in want:
      assert_same(got[key], want[key])
  elif isinstance(want, list | tuple):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
      assert_same(a, b)
  else:
    assert got == want


LEAVES = (
  strategies.none()
  | strategies.booleans()
  | strategies.integers()
  | strategies.floats(allow_nan=False)
  | strategies.text()
  | strategies.binary()
  | arrays.arrays(
    strategies.sampled_from(['f4', 'f8', 'i4', 'u1', '?', '>i2', 'c8', 'U3']),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
  )
)
VALUES = strategies.recursive(
  LEAVES,
  lambda inner: (
    strategies.lists(inner, max_size=4)
    | strategies.lists(inner, max_size=4).map(tuple)
    | strategies.dictionaries(
      strategies.text() | strategies.integers(), inner, max_size=4
    )
  ),
  max_leaves=12,
)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(VALUES)
def test_any_value_comes_back_as_it_was(value):
  assert_same(round_trip(value), value)


@pytest.mark.parametrize(
  'value',
  [
    np.float64(1.5),
    np.float32(2),
    np.int64(-3),
    np.bool_(True),
    np.str_('seven'),
    np.str_(''),
    np.datetime64('2020-02-02'),
    np.zeros(()),
    np.zeros((0, 3), np.float32),
    np.arange(12).reshape(3, 4).T,
    np.arange(10)[::-2],
    np.array(['2020-01-01'], 'M8[D]'),
    2**100,
    -(2**100),
    float('inf'),
    1 - 2j,
    b'x' * 5000,
    ((), [], {}, b'', ''),
    {(1, 2): 'tuple key', 3: 'int key'},
  ],
  ids=repr,
)
def test_special_values_come_back_as_they_were(value):
  assert_same(round_trip(value), value)


def test_a_named_tuple_keeps_its_fields():
  got = round_trip([Point(1, np.arange(3))])[0]
  assert type(got).__name__ == 'Point' and got.x == 1
  np.testing.assert_array_equal(got.y, np.arange(3))


def test_decoding_copies_no_array():
  message = encode(np.zeros(1000))
  array = codec.decode(message)
  assert not array.flags.owndata and not array.flags.writeable
  assert array.flags.aligned


def test_bytes_like_values_become_bytes():
  assert round_trip([bytearray(b'ab'), memoryview(b'cd')]) == [b'ab', b'cd']


def test_classes_of_lists_and_dicts_become_plain_ones():
  assert round_trip(collections.Counter('aab')) == {'a': 2, 'b': 1}
  assert type(round_trip(collections.OrderedDict(a=1))) is dict


endless: list = []
endless.append(endless)


@pytest.mark.parametrize(
  'value',
  [
    {1, 2},
    {'a': [0, object()]},
    np.array([None]),
    np.zeros(2, [('a', 'f4')]),
    {'a': np.ma.array([1.0, 2.0], mask=[0, 1])},
    [('half a character \ud800',)],
    {'\udcff': 1},
    endless,
  ],
  ids=['set', 'object', 'objects', 'fields', 'mask', 'text', 'key', 'endless'],
)
def test_other_values_are_refused_and_leave_nothing_for_the_next(value):
  with pytest.raises(TypeError, match='cannot cross an RPC'):
    encode([np.zeros(3), value])
  assert_same(round_trip([np.ones(2)]), [np.ones(2)])


def test_deep_claims_are_refused():
  for levels in (600, 100_000):
    structure = b'\x91' * levels + b'\x90'  # a list in a list in ...
    size = codec.HEADER_BYTES + len(structure)
    head = struct.pack('<4sIQ', b'MUR3', len(structure), size)
    if levels > 1000:
      with pytest.raises(ValueError, match='not a whole message'):
        codec.decode(head + structure)
    else:
      codec.decode(head + structure)


def test_claims_of_shape_take_no_memory():
  message = encode(np.zeros((0, 2**31 - 1)))
  assert message.count(b'\x92\x00\xce') == 1
  claims = message.replace(b'\x92\x00\xce', b'\x92\x01\xce')
  tracemalloc.start()
  try:
    with pytest.raises(ValueError, match='not a whole message'):
      codec.decode(claims)
    assert tracemalloc.get_traced_memory()[1] < 1e6
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize(
  'message',
  [b'', b'short', b'XXXX' + bytes(20), encode(np.zeros(99))[:-8]],
  ids=['empty', 'short', 'foreign', 'cut'],
)
def test_a_message_that_is_not_whole_is_refused(message):
  with pytest.raises(ValueError, match='not a whole message'):
    codec.decode(message)
