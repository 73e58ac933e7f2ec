"""Python values <-> bytes, with NumPy arrays as raw buffers.

    magic [4] | structure size, uint32 | size of all, uint64
    | structure | pad | buffer | pad | ...

The structure is msgpack. What msgpack does not know is a list in it that begins
with an extension type: its kind. Neither end copies an array: `encode_parts`
gives the arrays' own memory to whoever sends, and `decode` makes read-only
views of what was received. Nothing in a message names code.
"""

import collections
from collections.abc import Callable
import functools
import struct
import threading
from typing import Any, NamedTuple

import msgpack
import numpy as np

_MAGIC = b'MUR3'
_HEADER = struct.Struct('<4sIQ')
HEADER_BYTES = _HEADER.size
MAX_BYTES = 1 << 30
_ALIGNMENT = 16  # of the buffers, as messages in memory
_CASTABLE = 'bBhHiIlLqQfd'  # numbers in this machine's byte order

_KINDS = range(6)
_TUPLE, _NAMED_TUPLE, _ARRAY, _SCALAR, _BIG_INT, _COMPLEX = (
  msgpack.ExtType(kind, b'') for kind in _KINDS
)
_this_thread = threading.local()


class _Kind(NamedTuple):
  """What stands first in a list; makes a value of the rest of the list."""

  make: Callable[[list[Any]], Any]


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
    TypeError: the value holds something else, or is larger than MAX_BYTES.
  """
  try:
    encoder = _this_thread.encoder
  except AttributeError:
    encoder = _this_thread.encoder = _Encoder()
  return encoder.encode(value)


def message_size(head: Any) -> int:
  """Bytes of the whole message that begins with `head`, HEADER_BYTES or more.

  Raises:
    ValueError: no message of ours begins like that, or it is too long.
  """
  magic, structure, size = _HEADER.unpack_from(head)
  if magic != _MAGIC or not HEADER_BYTES + structure <= size <= MAX_BYTES:
    raise ValueError('it is no message of launch/rpc')
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
    if message_size(message) != len(message):
      raise ValueError('it is cut short')
    return _Decoder(memoryview(message).toreadonly()).decode()
  except Exception as e:  # whatever nonsense does to msgpack and NumPy
    raise ValueError(
      f'This is not a whole message of launch/rpc ({len(message)} bytes: '
      f'{e}). Both ends must run the same version of this project.'
    ) from e


class _Encoder:
  """Of one thread: a packer takes longer to make than to fill."""

  def __init__(self):
    # Strict: else a tuple is a list, and a np.float64 a float.
    self._packer = msgpack.Packer(default=self._other, strict_types=True)
    self._buffers: list[Any] = []

  def encode(self, value: Any) -> list[Any]:
    self._buffers = []
    try:
      structure = self._packer.pack(value)
    except ValueError as e:  # half a character, or nested too deep
      raise TypeError(f'The value cannot cross an RPC: {e}.') from e
    finally:
      buffers, self._buffers = self._buffers, []
    parts = [b'', structure]
    size = HEADER_BYTES + len(structure)
    for buffer in buffers:
      if padding := -size % _ALIGNMENT:
        parts.append(bytes(padding))
      parts.append(buffer)
      size += padding + len(buffer)
    if size > MAX_BYTES:
      raise TypeError(
        f'This is a message of {size} bytes; an RPC carries {MAX_BYTES} at '
        'most. Send it in parts.'
      )
    parts[0] = _HEADER.pack(_MAGIC, len(structure), size)
    return parts

  def _other(self, x: Any) -> Any:
    """What msgpack does not know, as a list that it does."""
    if isinstance(x, np.ndarray) and _is_plain(x):
      buffer = _memory(x)
      self._buffers.append(buffer)
      return [_ARRAY, len(buffer), x.dtype.str, list(x.shape)]
    if isinstance(x, tuple):
      fields = getattr(type(x), '_fields', None)
      if fields is None:
        return [_TUPLE, *x]
      return [_NAMED_TUPLE, [type(x).__name__, *fields], *x]
    if isinstance(x, np.generic) and _is_plain(x):
      return [_SCALAR, x.dtype.str, x.tobytes()]
    if isinstance(x, (dict, list)):  # of a class of its own
      return dict(x) if isinstance(x, dict) else list(x)
    if type(x) is int:  # of more than 64 bits
      return [_BIG_INT, str(x)]
    if type(x) is complex:
      return [_COMPLEX, x.real, x.imag]
    raise TypeError(
      f'{x!r:.80} is a {type(x).__module__}.{type(x).__qualname__}, which '
      'cannot cross an RPC. Send None, bool, int, float, str, bytes, NumPy '
      'arrays or scalars of these, or lists, tuples and dicts (a TensorFlow '
      'tensor: .numpy(); a dataclass: dataclasses.asdict; a masked array: '
      '.filled()).'
    )


def _is_plain(x: Any) -> bool:
  return x.dtype.kind not in 'OV' and not isinstance(x, np.ma.MaskedArray)


def _memory(array: np.ndarray) -> Any:
  if not array.size:
    return b''
  if array.dtype.char in _CASTABLE and array.flags.c_contiguous:
    return array.data.cast('B')  # the same as below, in a fifth of the time
  # Dates and strings have no buffer interface; their bytes do.
  return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class _Decoder:
  """Rebuilds a value; keeps the place of the buffers behind the structure."""

  def __init__(self, view: memoryview):
    self._view = view
    self._end = HEADER_BYTES + _HEADER.unpack_from(view)[1]

  def decode(self) -> Any:
    # Without recursion, and msgpack limits the depth.
    return msgpack.unpackb(
      self._view[HEADER_BYTES : self._end],
      strict_map_key=False,
      ext_hook=self._kind,
      list_hook=_list,
    )

  def _kind(self, code: int, unused_data: bytes) -> _Kind:
    if code == _ARRAY.code:
      return _Kind(self._array)
    return _MAKERS[code]

  def _array(self, items: list[Any]) -> np.ndarray:
    size, dtype, shape = items
    begin = self._end + -self._end % _ALIGNMENT
    if not 0 <= size <= len(self._view) - begin:
      raise ValueError('a buffer is cut short')
    self._end = begin + size
    if not size:  # The shape is a claim too: it must not make more than that.
      return np.zeros(0, dtype).reshape(shape)
    return np.frombuffer(self._view[begin : self._end], dtype).reshape(shape)


def _list(items: list[Any]) -> Any:
  if items and type(items[0]) is _Kind:
    return items[0].make(items[1:])
  return items


def _scalar(items: list[Any]) -> Any:
  dtype, raw = items
  if not np.dtype(dtype).itemsize:
    return np.zeros((), dtype)[()]
  return np.frombuffer(raw, dtype)[0]


@functools.lru_cache(maxsize=256)
def _named_tuple(name: str, *fields: str) -> Any:
  return collections.namedtuple(name, fields)


_MAKERS = {
  _TUPLE.code: _Kind(tuple),
  _NAMED_TUPLE.code: _Kind(lambda x: _named_tuple(*x[0])(*x[1:])),
  _SCALAR.code: _Kind(_scalar),
  _BIG_INT.code: _Kind(lambda x: int(x[0])),
  _COMPLEX.code: _Kind(lambda x: complex(*x)),
}
