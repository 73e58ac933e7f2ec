"""Tensors are freed whole."""

import copy
import gc
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from murmuration.agents.networks import conv
from murmuration.replay import tensors

_LEAK = 0.5  # blocks; a call that leaks leaves one at least


def blocks_left(call, times=300):
  """Blocks of memory that a call leaves behind; the least of three trials.

  The first calls fill caches: some 40 blocks in a process that is new, more in
  one in which other tests have run.
  """
  for _ in range(20):
    call()
  found = []
  for _ in range(3):
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
      call()
    gc.collect()
    found.append((sys.getallocatedblocks() - before) / times)
  return min(found)


@pytest.fixture
def leaking():
  """Tensors as they are when a process begins."""
  if sys.version_info[:2] != (3, 11):
    yield
    return
  made = tensors._tp_new(ops.EagerTensor)
  before, made.value = made.value, tensors._tp_new(object).value
  yield
  made.value = before


def test_tensors_leave_nothing_behind():
  tensors.stop_leak()
  constant = tf.constant([1.0])
  assert blocks_left(lambda: tf.identity(constant)) < _LEAK


def test_acting_with_images_leaves_nothing_behind(leaking):
  # An actor, an evaluator or a server that acts samples and learns nothing.
  net = conv.ConvNet((20, 20, 1), 3, kind='shallow')
  variables = [x[None] for x in net.initial(np.random.default_rng(0))]
  prepared, images = net.prepare(variables), np.zeros((1, 2, 20, 20, 1), 'u1')
  assert blocks_left(lambda: net.forward(prepared, images)) < _LEAK
  assert blocks_left(lambda: net.prepare(variables)) < _LEAK


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
