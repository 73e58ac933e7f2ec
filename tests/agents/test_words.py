"""Arrays that travel into TensorFlow as one vector come out as they went in."""

import numpy as np
import pytest
import tensorflow as tf

from murmuration.agents import words

RNG = np.random.default_rng(0)
NEST = {
  'float': RNG.normal(size=(3, 2)).astype(np.float32),
  'int': np.array([[1, -2]], np.int32),
  'bool': np.array([True, False, True]),
  'long': np.array([2**40, -1], np.int64),
  'double': np.array([np.pi, -np.inf]),
  'number': np.float32(np.nan),
  'empty': np.zeros((4, 0), np.float32),
  'image': RNG.integers(0, 256, (2, 3), np.uint8),
  'large': RNG.normal(size=20_000).astype(np.float32),
}


@pytest.mark.parametrize('compiled', [False, True])
def test_each_array_comes_out_as_it_went_in(compiled):
  call = words.Call(
    lambda nest, more: (more, nest),
    [words.specs_of(NEST), words.specs_of([NEST['int']])],
    compiled,
  )
  for _ in range(2):  # the vector is used again
    more, nest = call(NEST, [NEST['int']])
    np.testing.assert_array_equal(more[0], NEST['int'])
    assert nest.keys() == NEST.keys()
    for name, array in NEST.items():
      assert nest[name].dtype == array.dtype, name
      np.testing.assert_array_equal(nest[name], array, err_msg=name)


def test_results_of_a_call_stay_when_the_next_is_made():
  call = words.Call(lambda x: x + 1, [tf.TensorSpec((2,), tf.float32)], False)
  first = call(np.float32([1, 2]))
  call(np.float32([5, 6]))
  np.testing.assert_array_equal(first, [2, 3])


def test_a_function_is_traced_once_for_each_shape():
  traced = []

  def python(x):
    traced.append(x.shape)
    return 2 * x

  function = words.Function(python, compiled=False)
  for size in (2, 3, 2, 3, 2):
    x = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(function(x), 2 * x)
  function(tf.zeros(3))
  assert len(traced) == 2


@pytest.mark.parametrize('compiled', [False, True])
@pytest.mark.parametrize('size', [3, 20_000])  # beside others, and alone
def test_other_numbers_become_those_it_was_traced_for_unless_they_lose_more(
  size, compiled
):
  spec = tf.TensorSpec((size,), tf.float32)
  double = words.Call(lambda x: 2 * x, [spec], compiled)
  x = np.linspace(-1, 1, size)
  np.testing.assert_array_equal(double(x), 2 * x.astype(np.float32))
  spec = tf.TensorSpec((size,), tf.int32)
  double = words.Call(lambda x: 2 * x, [spec], compiled)
  np.testing.assert_array_equal(double(np.arange(size)), 2 * np.arange(size))
  with pytest.raises(TypeError, match='Cannot c.*int32'):
    double(x)


def test_variables_change_with_each_call():
  total = tf.Variable(0.0)
  call = words.Call(
    lambda x: total.assign_add(x), [tf.TensorSpec((), tf.float32)], True
  )
  assert total.numpy() == 0  # tracing runs nothing
  assert [float(call(np.float32(3))) for _ in range(3)] == [3, 6, 9]


def test_what_a_compiled_call_keeps_is_not_what_the_next_one_brings():
  kept = tf.Variable(tf.zeros(2))

  def keep(x):
    kept.assign(x)
    return x

  call = words.Call(keep, [tf.TensorSpec((2,), tf.float32)], True)
  first = call(np.float32([1, 2]))
  before = kept.read_value()
  np.testing.assert_array_equal(call(np.float32([5, 6])), [5, 6])
  np.testing.assert_array_equal(first, [1, 2])
  np.testing.assert_array_equal(before, [1, 2])
  np.testing.assert_array_equal(kept, [5, 6])
