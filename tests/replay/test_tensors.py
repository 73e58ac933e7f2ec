"""Tensors are freed whole."""

import copy
import gc
import sys

import numpy as np
import tensorflow as tf

from replay import tensors

_MADE = 5_000


def blocks_left():
  """Blocks of memory that tensors leave behind, for each."""
  constant = tf.constant([1.0])
  tf.identity(constant)
  gc.collect()
  before = sys.getallocatedblocks()
  for _ in range(_MADE):
    tf.identity(constant)
  gc.collect()
  return (sys.getallocatedblocks() - before) / _MADE


def test_tensors_leave_nothing_behind():
  tensors.stop_leak()
  assert min(blocks_left() for _ in range(3)) < 0.1


def test_only_cpython_3_11_needs_it():
  assert tensors.stop_leak() == (sys.version_info[:2] == (3, 11))
  assert tensors.stop_leak() == tensors.stop_leak()


def test_a_tensor_is_still_what_it_was():
  tensors.stop_leak()
  tensor = tf.constant([1.0, 2.0])
  tensor.note = 'may have attributes'
  assert tensor.__dict__ == {'note': 'may have attributes'}
  np.testing.assert_array_equal(copy.deepcopy(tensor), [1.0, 2.0])
  with tf.GradientTape() as tape:
    tape.watch(tensor)
    square = tf.function(lambda x: x * x)(tensor)
  np.testing.assert_array_equal(tape.gradient(square, tensor), [2.0, 4.0])
