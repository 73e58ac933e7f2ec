"""Python values <-> bytes, with NumPy arrays as raw buffers.

A call and its answer cross the wire as a message each, which is made here:

    magic [4] | structure size, uint32 | size of all, uint64
    | structure | pad | buffer | pad | ...

The structure is msgpack; arrays and long byte strings stand in it as references
to the buffers behind it. Neither end copies an array: `encode_parts` gives the
arrays' own memory to whoever sends, and `decode` makes read-only views of what
was received. Nothing in a message names code, so decoding one runs none.
"""

import collections
import functools
import struct
import threading
from typing import Any

import msgpack
import numpy as np

_MAGIC = b'MUR2'
_HEADER = struct.Struct('<4sIQ')
HEADER_BYTES = _HEADER.size
MAX_BYTES = 1 << 30
# Messages start 16-byte aligned in memory, so the buffers do as well.
_ALIGNMENT = 16
_PADDING = bytes(_ALIGNMENT)
_LONG_BYTES = 1024
MAX_DEPTH = 64  # of what holds what holds ...

# What msgpack takes as it is; ints that are too big for it come to `_big`.
_PLAIN = frozenset((type(None), bool, int, float, str))
_CASTABLE = 'bBhHiIlLqQfd'  # of numbers in this machine's order: see below

_this_thread = threading.local()

_TUPLE, _NAMED_TUPLE, _ARRAY, _SCALAR, _BYTES, _BIG_INT, _COMPLEX = range(1, 8)


def encode_parts(value: Any) -> list[Any]:
  """Encodes a value.

  Args:
    value: None, bool, int, float, complex, str, bytes, NumPy arrays and scalars
      of any shape (0-d too) and plain dtype, and lists, tuples, NamedTuples and
      dicts of these.

  Returns:
    The message in pieces, some of them the arrays' own memory: they must be
    sent, or joined, before an array of the value changes.

  Raises:
    TypeError: the value holds something else; says where and what to do.
  """
  buffers: list[Any] = []
  try:
    structure = _pack(_lower(value, buffers, ()))
  except UnicodeEncodeError as e:
    raise TypeError(
      f'{e.object[:40]!r} has half a character, as the name of a file that is '
      'not UTF-8, which cannot cross an RPC. Send its bytes: os.fsencode.'
    ) from e
  parts = [b'', structure]
  size = HEADER_BYTES + len(structure)
  for buffer in buffers:
    padding = -size % _ALIGNMENT
    if padding:
      parts.append(_PADDING[:padding])
    parts.append(buffer)
    size += padding + len(buffer)
  if size > MAX_BYTES:
    raise TypeError(
      f'This is a message of {size} bytes; an RPC carries {MAX_BYTES} at most. '
      'Send it in parts.'
    )
  parts[0] = _HEADER.pack(_MAGIC, len(structure), size)
  return parts


def message_size(head: Any) -> int:
  """Bytes of the whole message that begins with `head`, HEADER_BYTES or more.

  Raises:
    ValueError: no message of ours begins like that, or it is too long.
  """
  magic, structure_size, size = _HEADER.unpack_from(head)
  if magic != _MAGIC:
    raise ValueError('it is no message of launch/rpc')
  if not HEADER_BYTES + structure_size <= size <= MAX_BYTES:
    raise ValueError(f'a message claims more than {MAX_BYTES} bytes, or none')
  return size


def decode(message: Any) -> Any:
  """Decodes what `encode_parts` made.

  Args:
    message: the bytes, in any buffer; the arrays in the result are views of it.

  Returns:
    The value. Arrays are read-only. A NamedTuple comes back as one of the same
    name and fields, but not of the same class.

  Raises:
    ValueError: the message was not made by `encode_parts` or is cut short.
  """
  try:
    magic, structure_size, size = _HEADER.unpack_from(message)
    if magic != _MAGIC:
      raise ValueError(f'starts with {magic!r}')
    if size != len(message):
      raise ValueError(f'it says {size}')
    end = HEADER_BYTES + structure_size
    view = memoryview(message).toreadonly()
    return _Decoder(view, end).unpack(view[HEADER_BYTES:end])
  except Exception as e:  # Whatever nonsense does to msgpack and NumPy.
    raise ValueError(
      f'This is not a whole message of launch/rpc ({len(message)} bytes: '
      f'{e}). Both ends must run the same version of this project.'
    ) from e


def _pack(value: Any) -> bytes:
  # A packer has a buffer of its own, which takes longer to make than to fill.
  try:
    return _this_thread.packer.pack(value)
  except AttributeError:
    _this_thread.packer = msgpack.Packer(use_bin_type=True, default=_big)
    return _this_thread.packer.pack(value)


def _big(value: int) -> msgpack.ExtType:
  """What msgpack has no room for: an int of more than 64 bits."""
  return msgpack.ExtType(_BIG_INT, str(value).encode())


def _lower(value: Any, buffers: list[Any], where: tuple, depth: int = 0) -> Any:
  """Rewrites a value into what msgpack knows; big data goes to buffers.

  `where` is () or (where what holds it is, its key): see `_place`.
  """
  kind = type(value)
  if kind in _PLAIN or (kind is bytes and len(value) < _LONG_BYTES):
    return value
  if isinstance(value, (list, tuple, dict)):
    return _lower_items(value, buffers, where, depth + 1)
  if isinstance(value, np.ndarray):
    return _lower_array(value, buffers, where)
  if isinstance(value, np.generic):
    dtype = _dtype_name(value.dtype, where)
    return msgpack.ExtType(_SCALAR, _pack([dtype, value.tobytes()]))
  if kind in (bytes, bytearray, memoryview):
    value = bytes(value)
    if len(value) < _LONG_BYTES:
      return value
    buffers.append(value)
    return msgpack.ExtType(_BYTES, _pack([len(buffers) - 1, len(value)]))
  if kind is complex:
    return msgpack.ExtType(_COMPLEX, struct.pack('<dd', value.real, value.imag))
  raise TypeError(
    f'{_place(where)} is a {kind.__module__}.{kind.__qualname__}, which cannot '
    'cross an RPC. Send None, bool, int, float, str, bytes, NumPy arrays or '
    'scalars, or lists, tuples and dicts of these (a TensorFlow tensor: '
    '.numpy(); a dataclass: dataclasses.asdict).'
  )


def _lower_items(
  value: Any, buffers: list[Any], where: tuple, depth: int
) -> Any:
  """The same of a list, tuple or dict, which `depth` - 1 others hold."""
  if depth > MAX_DEPTH:
    raise TypeError(
      f'The value holds lists, tuples or dicts in more than {MAX_DEPTH} '
      'levels, or itself; an RPC carries no more. Send it flat.'
    )
  if isinstance(value, dict):
    return {
      k
      if type(k) in _PLAIN
      else _lower(k, buffers, (where, k, 'key'), depth): v
      if type(v) in _PLAIN
      else _lower(v, buffers, (where, k), depth)
      for k, v in value.items()
    }
  # Nearly all that is sent is plain, and a call for each would cost as much
  # as sending it.
  items = [
    x if type(x) in _PLAIN else _lower(x, buffers, (where, i), depth)
    for i, x in enumerate(value)
  ]
  if isinstance(value, list):
    return items
  fields = getattr(type(value), '_fields', None)
  if fields is None:
    return msgpack.ExtType(_TUPLE, _pack(items))
  names = [type(value).__name__, *fields]
  return msgpack.ExtType(_NAMED_TUPLE, _pack([names, items]))


def _lower_array(array: np.ndarray, buffers: list[Any], where: tuple) -> Any:
  if isinstance(array, np.ma.MaskedArray):
    raise TypeError(
      f'{_place(where)} is a masked array, which cannot cross an RPC. Send its '
      '.filled(), or its data and its mask.'
    )
  dtype = _dtype_name(array.dtype, where)
  # ascontiguousarray would turn a 0-d array into [1]: the shape is kept apart.
  shape = list(array.shape)
  if not array.size:
    buffer: Any = b''
  elif array.dtype.char in _CASTABLE and array.flags.c_contiguous:
    buffer = array.data.cast('B')  # the same as below, in a fifth of the time
  else:
    # Dates and strings have no buffer interface; their bytes do.
    buffer = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
  buffers.append(buffer)
  structure = [len(buffers) - 1, array.nbytes, dtype, shape]
  return msgpack.ExtType(_ARRAY, _pack(structure))


def _place(where: tuple) -> str:
  """What is at fault, in words."""
  if not where:
    return 'value'
  holder, key, *is_key = where
  if is_key:
    return f'key {key!r} of {_place(holder)}'
  return f'{_place(holder)}[{key!r}]'


def _dtype_name(dtype: np.dtype, where: tuple) -> str:
  if dtype.hasobject or dtype.kind == 'V':
    raise TypeError(
      f'{_place(where)} is a NumPy array of dtype {dtype}, which cannot cross '
      'an RPC. Send arrays of numbers, booleans, strings or dates, or a dict '
      'of them.'
    )
  return dtype.str


class _Decoder:
  """Rebuilds a value; keeps the place of the buffers behind the structure."""

  def __init__(self, view: memoryview, end_of_structure: int):
    self._view = view
    self._ends = [end_of_structure]
    self._depth = -1  # of tuples: each is unpacked inside the one around it

  def unpack(self, structure: Any) -> Any:
    self._depth += 1
    if self._depth > MAX_DEPTH:
      raise ValueError(f'tuples in more than {MAX_DEPTH} levels')
    value = msgpack.unpackb(
      structure,
      raw=False,
      use_list=True,
      strict_map_key=False,
      ext_hook=self._ext,
    )
    self._depth -= 1
    return value

  def _buffer(self, index: int, size: int) -> memoryview:
    # References come in the order of the buffers, each exactly once.
    if index != len(self._ends) - 1:
      raise ValueError(f'buffer {index} out of order')
    start = self._ends[-1] + -self._ends[-1] % _ALIGNMENT
    if start + size > len(self._view):
      raise ValueError(f'buffer {index} is cut short')
    self._ends.append(start + size)
    return self._view[start : start + size]

  def _ext(self, code: int, data: bytes) -> Any:
    if code == _TUPLE:
      return tuple(self.unpack(data))
    if code == _NAMED_TUPLE:
      names, items = self.unpack(data)
      return _named_tuple(*names)._make(items)
    if code == _ARRAY:
      index, size, dtype, shape = msgpack.unpackb(data)
      buffer = self._buffer(index, size)
      if size:
        return np.frombuffer(buffer, dtype).reshape(shape)
      # The shape is a claim too: it must not make more than there is.
      return np.zeros(0, dtype).reshape(shape)
    if code == _SCALAR:
      dtype, raw = msgpack.unpackb(data)
      if not np.dtype(dtype).itemsize:
        return np.zeros((), dtype)[()]
      return np.frombuffer(raw, dtype)[0]
    if code == _BYTES:
      return bytes(self._buffer(*msgpack.unpackb(data)))
    if code == _BIG_INT:
      return int(data)
    if code == _COMPLEX:
      return complex(*struct.unpack('<dd', data))
    raise ValueError(f'unknown extension {code}')


@functools.lru_cache(maxsize=256)
def _named_tuple(name: str, *fields: str) -> Any:
  return collections.namedtuple(name, fields)
