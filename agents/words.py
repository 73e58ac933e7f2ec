"""TensorFlow functions whose small arguments and results are one vector each.

Passing a tensor into or out of a TensorFlow call costs 10 to 50 us of Python,
and the call itself 300 us unless it calls one traced function: more than the
arithmetic of a small update. Small arrays therefore travel side by side in one
vector of 32-bit words, bit by bit; large ones, and those of other types, are
passed separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf

from murmuration.replay import tensors as tensors_lib

_WORD = 4  # bytes
_ALIGNMENT = 64  # bytes
_LARGE = 16_384  # words, from which an array is passed separately
_TYPES = ('bool', 'int32', 'float32', 'int64', 'float64')


class Words:
  """The place of each array of a list in a vector of `size` words."""

  def __init__(self, specs: Sequence[tf.TensorSpec]):
    """Takes the arrays' specs, of known shapes and types in `_TYPES`."""
    self._specs = list(specs)
    self._sizes = [_words(spec) for spec in self._specs]
    self.size = sum(self._sizes)
    # Place, type and shape of each array, cached because TensorFlow's types and
    # shapes are slow to query.
    self._places, end = [], 0
    for spec, size in zip(self._specs, self._sizes):
      place, end = slice(end, end + size), end + size
      self._places.append((place, np.dtype(_stored(spec)), tuple(spec.shape)))
    self._bools = [
      i for i, spec in enumerate(self._specs) if spec.dtype == tf.bool
    ]

  def views(self, vector: np.ndarray) -> list[np.ndarray]:
    """Views of the arrays in a vector int32 [size]; bools as int32."""
    return [
      vector[place].view(stored).reshape(shape)
      for place, stored, shape in self._places
    ]

  def read(self, vector: np.ndarray) -> list[np.ndarray]:
    """The arrays of a vector: views of it, except for copies of bools."""
    views = self.views(vector)
    for i in self._bools:
      views[i] = views[i].astype(bool)
    return views

  def unpack(self, vector: tf.Tensor) -> list[tf.Tensor]:
    """The tensors of a vector. In the graph."""
    if not self._specs:
      return []
    parts = tf.split(vector, self._sizes)
    return [_from_words(part, spec) for part, spec in zip(parts, self._specs)]

  def pack(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The vector of these tensors. In the graph."""
    if not self._specs:
      return tf.zeros(0, tf.int32)
    return tf.concat([_to_words(x) for x in tensors], axis=0)


class Call:
  """A traced function from arrays to arrays."""

  def __init__(
    self,
    python: Callable[..., Any],
    specs: Sequence[Any],
    compiled: bool,
  ):
    """Traces the function without running it.

    It maps nests of tensors, of these specs, to a nest of tensors. If
    `compiled`, XLA compiles it into one program.
    """
    tensors_lib.stop_leak()
    self._nest = list(specs)
    flat = tf.nest.flatten(self._nest)
    self._shapes = [tuple(spec.shape) for spec in flat]
    self._dtypes = [np.dtype(spec.dtype.as_numpy_dtype) for spec in flat]
    self._inside, self._alone = _split(flat)
    self._inputs = Words([flat[i] for i in self._inside])
    self._buffer = _aligned(self._inputs.size)
    self._places = self._inputs.views(self._buffer)
    # A tensor that shares the buffer's memory. Only for XLA, which copies what
    # it keeps; otherwise a variable may share the memory of an argument.
    self._shared: tf.Tensor | None = None
    if compiled and self._inputs.size:
      dlpack = tf.experimental.dlpack
      self._shared = dlpack.from_dlpack(self._buffer.__dlpack__())
    # Takes the vector and the separate arrays.
    self.function = tf.function(
      self._packed(python), autograph=False, jit_compile=compiled
    )
    concrete = self.function.get_concrete_function(
      tf.TensorSpec(self._buffer.shape, tf.int32),
      *(flat[i] for i in self._alone),
    )
    # Calling `concrete` would first bind arguments to parameters and search for
    # gradient tapes, which takes a third of a small call.
    self._captured = concrete.captured_inputs
    self._concrete = concrete.inference_fn.call_flat

  def fits(self, flat: Sequence[Any]) -> bool:
    """Whether it was traced for the shapes of these flattened arguments."""
    return self._shapes == [x.shape for x in flat]

  def __call__(self, *arguments: Any) -> Any:
    """Calls the function on nests of arrays or tensors; returns arrays."""
    return self.on(tf.nest.flatten(arguments))

  def on(self, flat: Sequence[Any]) -> Any:
    """Like `__call__`, on the flattened arguments.

    Numbers of another type become those it was traced for, as float64 becomes
    float32.

    Raises:
      TypeError: they would lose more than digits, as floats that become
        integers.
    """
    for place, i in zip(self._places, self._inside):
      x = flat[i]
      if x.dtype is self._dtypes[i]:
        place[...] = x
      else:  # takes three times as long, and looks at what is lost
        np.copyto(place, x, casting='same_kind')
    shared = self._shared
    packed, *alone = self._concrete(
      tf.constant(self._buffer) if shared is None else shared,
      *(self._tensor(flat[i], i) for i in self._alone),
      *self._captured,
    )
    given: list[Any] = [None] * (len(self._outside) + len(alone))
    for i, array in zip(self._outside, self._outputs.read(packed.numpy())):
      given[i] = array
    for i, tensor in zip(self._apart, alone):
      given[i] = tensor.numpy()
    return _packed_as(self.given, iter(given))

  def _tensor(self, x: Any, i: int) -> tf.Tensor:
    if x.dtype != self._dtypes[i]:
      x = np.asarray(x).astype(self._dtypes[i], casting='same_kind')
    return tf.convert_to_tensor(x)

  def _packed(self, python):
    def function(vector, *alone):
      flat: list[Any] = [None] * len(self._shapes)
      for i, x in zip(self._inside, self._inputs.unpack(vector)):
        flat[i] = x
      for i, x in zip(self._alone, alone):
        flat[i] = x
      given = python(*tf.nest.pack_sequence_as(self._nest, flat))
      out = tf.nest.flatten(given)
      specs = [tf.TensorSpec(x.shape, x.dtype) for x in out]
      self.given = specs_of(given)  # of the results
      self._outside, self._apart = _split(specs)
      self._outputs = Words([specs[i] for i in self._outside])
      packed = self._outputs.pack([out[i] for i in self._outside])
      return [packed, *(out[i] for i in self._apart)]

    return function


class Function:
  """A function from arrays to arrays, traced for each of their shapes."""

  def __init__(self, python: Callable[..., Any], compiled: bool):
    self._python, self._compiled = python, compiled
    self._calls: list[Call] = []  # the most recent one first

  def trace(self, *specs: Any) -> None:
    """Builds the call for arguments of these specs, without running it."""
    self._calls.insert(0, Call(self._python, specs, self._compiled))

  def __call__(self, *arguments: Any) -> Any:
    flat = tf.nest.flatten(arguments)
    if not (self._calls and self._calls[0].fits(flat)):
      known = [call for call in self._calls if call.fits(flat)]
      if known:
        self._calls.remove(known[0])
        self._calls.insert(0, known[0])
      else:
        self.trace(*specs_of(list(arguments)))
    return self._calls[0].on(flat)


def specs_of(nest: Any) -> Any:
  """Specs of a nest of tensors or arrays."""
  return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), nest)


def _aligned(size: int) -> np.ndarray:
  """int32 [size] of zeros, aligned in memory as TensorFlow requires."""
  room = np.zeros(size + _ALIGNMENT // _WORD, np.int32)
  start = -room.ctypes.data % _ALIGNMENT // _WORD
  return room[start : start + size]


def _packed_as(nest: Any, flat: Iterator[Any]) -> Any:
  """Equals tf.nest.pack_sequence_as, which takes ten times as long."""
  if isinstance(nest, dict):
    found = {key: _packed_as(nest[key], flat) for key in sorted(nest)}
    return {key: found[key] for key in nest}
  if not isinstance(nest, (list, tuple)):
    return next(flat)
  items = [_packed_as(item, flat) for item in nest]
  make = getattr(nest, '_make', type(nest))  # of a NamedTuple, or the type
  return make(items)


def _split(specs: Sequence[tf.TensorSpec]) -> tuple[list[int], list[int]]:
  """Indices of the specs that go into the vector, and of the others."""
  small = [
    spec.shape.is_fully_defined()
    and spec.dtype.name in _TYPES
    and _words(spec) < _LARGE
    for spec in specs
  ]
  numbers = range(len(specs))
  return [i for i in numbers if small[i]], [i for i in numbers if not small[i]]


def _words(spec: tf.TensorSpec) -> int:
  size = _WORD if spec.dtype == tf.bool else spec.dtype.size
  return math.prod(spec.shape) * size // _WORD


def _stored(spec: tf.TensorSpec) -> Any:
  return np.int32 if spec.dtype == tf.bool else spec.dtype.as_numpy_dtype


def _from_words(part: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  if spec.dtype == tf.bool:
    part = tf.not_equal(part, 0)
  elif spec.dtype.size > _WORD:
    part = tf.bitcast(tf.reshape(part, (-1, 2)), spec.dtype)
  elif spec.dtype != tf.int32:
    part = tf.bitcast(part, spec.dtype)
  return tf.reshape(part, spec.shape)


def _to_words(x: tf.Tensor) -> tf.Tensor:
  if x.dtype == tf.bool:
    x = tf.cast(x, tf.int32)
  elif x.dtype != tf.int32:
    x = tf.bitcast(x, tf.int32)
  return tf.reshape(x, (-1,))
