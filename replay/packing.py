"""Packs a transition into one column.

Reverb's cost is per item and per column (sampling 5 columns costs about 2.5
times as much as 1), so the fields of a transition lie side by side in one
vector of width W:

  o_tm1 | a_tm1 | r_t | d_t | o_t | weight | version | written_at

r_t is the n-step reward sum R and d_t the n-step discount D of nstep.py, so the
learner's target is r_t + gamma * d_t * value(o_t). weight is 1, or 0 if this
place of a population's array holds no transition. version and written_at give
the age of a sample, in learner steps (policy lag) and in seconds.

The column is float32. With uint8 observations (images) it is uint8, and holds
the bytes of the other fields as float32 numbers. Discrete actions and versions
are stored as float32 too, which holds every integer up to 2^24.
"""

import dataclasses
import functools
import math
import re
import time
from typing import Any, NamedTuple

import numpy as np

# written_at wraps around after this many seconds; float32 resolves 4 ms of it.
TIME_WRAP_S = 65536
# Difference between two machines' clocks that `age_s` tolerates, in seconds.
_CLOCK_SKEW_S = 60

_NAME = re.compile(
  r'transition\.(float32|uint8)_(scalar|\d+(?:x\d+)*)'
  r'\.(float32|int32)_(scalar|\d+(?:x\d+)*)'
)


class Transition(NamedTuple):
  """Fields of a transition; every field has the same leading shape [...].

  Attributes:
    o_tm1: observation acted on, float32 or uint8 [..., *observation_shape].
    a_tm1: action taken, int32 [...], or float32 [..., *action_shape].
    r_t: n-step reward sum R, float32 [...], environment reward units.
    d_t: n-step discount D without its last gamma, float32 [...].
    o_t: observation after the last reward, as o_tm1.
    weight: 1 for a transition, 0 for none, float32 [...].
    version: learner steps of the parameters that acted at o_tm1, float32 [...];
      the policy lag is the current learner step minus this.
    written_at: see `written_now`, float32 [...]; its age is `age_s`.
  """

  o_tm1: Any
  a_tm1: Any
  r_t: Any
  d_t: Any
  o_t: Any
  weight: Any = 1.0
  version: Any = 0.0
  written_at: Any = 0.0


# The wall clock at the import, continued by a clock that cannot be set. The
# nodes of a run on one host are forked after it, so they all have the same.
_AHEAD_S = time.time() - time.monotonic()


def now() -> float:
  """Seconds since the epoch; setting the clock does not change them."""
  return _AHEAD_S + time.monotonic()


def written_now() -> float:
  """`Transition.written_at` of a transition that is written now, in seconds."""
  return now() % TIME_WRAP_S


def age_s(written_at: Any, at: float | None = None) -> np.ndarray:
  """Seconds since transitions were written, float64 [...], at least 0.

  Correct up to 18 hours, then it wraps around. `written_at` [...] is as in
  `Transition`; `at` is in seconds since the epoch, by default `now()`.
  """
  if at is None:
    at = now()
  age = (at + _CLOCK_SKEW_S - np.asarray(written_at, float)) % TIME_WRAP_S
  return np.maximum(age - _CLOCK_SKEW_S, 0.0)


def check_layout(layout: Any) -> None:
  """Makes the shapes of a layout tuples of int.

  Raises:
    ValueError: an axis is empty, or observations are of another dtype.
  """
  for field in ('observation_shape', 'action_shape'):
    shape = tuple(int(size) for size in getattr(layout, field))
    if any(size < 1 for size in shape):
      raise ValueError(f'{field}={shape} has an empty axis.')
    object.__setattr__(layout, field, shape)
  if layout.observation_dtype not in ('float32', 'uint8'):
    raise ValueError(
      f'observation_dtype={layout.observation_dtype!r} must be float32 or '
      'uint8.'
    )


@dataclasses.dataclass(frozen=True)
class TransitionLayout:
  """Where each field of a transition lies in its column.

  Attributes:
    action_shape: shape of one action; () for a discrete one.
    discrete: whether actions are integers (unpacked as int32) or float32.
    observation_dtype: 'uint8', or 'float32' for all other numbers.
  """

  observation_shape: tuple[int, ...]
  action_shape: tuple[int, ...] = ()
  discrete: bool = True
  observation_dtype: str = 'float32'

  def __post_init__(self):
    check_layout(self)

  @functools.cached_property
  def dtype(self) -> np.dtype:
    """Dtype of the column: float32 or uint8."""
    return np.dtype(self.observation_dtype)

  @functools.cached_property
  def sizes(self) -> tuple[int, ...]:
    """Elements of each field, in the order of `Transition`."""
    size = math.prod(self.observation_shape)
    one = 4 // self.dtype.itemsize  # elements of a float32 number
    action = math.prod(self.action_shape) * one
    return (size, action, one, one, size, one, one, one)

  @functools.cached_property
  def slices(self) -> Transition:
    """Slice of each field in the last axis."""
    ends = np.cumsum(self.sizes).tolist()
    return Transition(
      *(
        slice(end - size, end)
        for size, end in zip(self.sizes, ends, strict=True)
      )
    )

  @functools.cached_property
  def width(self) -> int:
    """Elements of one packed transition, W."""
    return sum(self.sizes)

  @property
  def num_bytes(self) -> int:
    """Bytes of one packed transition."""
    return self.width * self.dtype.itemsize

  @functools.cached_property
  def name(self) -> str:
    """The layout as a string that `from_signature` parses."""

    def field(dtype: str, shape: tuple[int, ...]) -> str:
      return f'{dtype}_{"x".join(map(str, shape)) or "scalar"}'

    action = field('int32' if self.discrete else 'float32', self.action_shape)
    observation = field(self.observation_dtype, self.observation_shape)
    return f'transition.{observation}.{action}'

  def signature(self, *leading: int) -> Any:
    """Signature of a table whose items are packed transitions [*leading, W].

    Its name holds the layout, so that a client can decode the items of a table
    without knowing the agent: see `from_signature`.
    """
    import tensorflow as tf

    return tf.TensorSpec((*leading, self.width), self.dtype, name=self.name)

  def encode(self, value: Any) -> np.ndarray:
    """Numbers [..., k] as float32 [..., k], or as bytes, uint8 [..., 4 k]."""
    value = np.asarray(value, np.float32)
    if self.dtype == np.float32:
      return value
    return np.ascontiguousarray(value).view(np.uint8)

  def pack(self, *fields: Any, **named: Any) -> np.ndarray:
    """Packs arrays with a common leading shape [...] into [..., W].

    All fields of `Transition` but o_tm1 may also broadcast to that shape.

    Raises:
      ValueError: a field does not fit the layout.
    """
    values = Transition(*fields, **named)
    rank = len(self.observation_shape)
    shape = np.shape(values.o_tm1)
    leading = shape[: len(shape) - rank]
    if shape[len(leading) :] != self.observation_shape:
      raise ValueError(
        f'o_tm1 has shape {shape}, which does not end in the '
        f'observation_shape {self.observation_shape} of this layout.'
      )
    out = np.empty((*leading, self.width), self.dtype)
    for name, place, inner, value in zip(
      Transition._fields, self.slices, self._inner_shapes, values, strict=True
    ):
      value = np.broadcast_to(value, (*leading, *inner))
      value = value.reshape((*leading, math.prod(inner)))
      if name in ('o_tm1', 'o_t'):
        self.check_observation_dtype(name, value)
        out[..., place] = value
      else:
        out[..., place] = self.encode(value)
    return out

  def check_observation_dtype(self, name: str, observation: Any) -> None:
    """Raises ValueError if the layout is uint8 and `observation` is not."""
    got = np.asarray(observation).dtype
    if self.dtype == np.uint8 and got != np.uint8:
      raise ValueError(
        f'{name} is {got}, but this layout packs uint8 observations.'
      )

  @functools.cached_property
  def _inner_shapes(self) -> Transition:
    observation = self.observation_shape
    return Transition(
      observation, self.action_shape, (), (), observation, (), (), ()
    )

  def unpack(self, packed: Any) -> Transition:
    """Splits packed transitions [..., W] into their fields.

    Args:
      packed: float32 or uint8 [..., W], NumPy array or TensorFlow tensor (also
        inside a tf.function or a tf.vectorized_map).

    Returns:
      A `Transition` of the same kind. NumPy observations are views.

    Raises:
      ValueError: the last axis is not W, or the dtype is not the layout's.
    """
    if packed.shape[-1] != self.width or packed.dtype != self.dtype:
      dtype = np.dtype(getattr(packed.dtype, 'as_numpy_dtype', packed.dtype))
      raise ValueError(
        f'packed transitions are {dtype} {tuple(packed.shape)}, but this '
        f'layout needs {self.dtype} with a last axis of {self.width}.'
      )
    if isinstance(packed, np.ndarray):
      return self._unpack_numpy(packed)
    return self._unpack_tensor(packed)

  def _unpack_numpy(self, packed: np.ndarray) -> Transition:
    leading = packed.shape[:-1]

    def inner(name: str, place: slice, shape: tuple[int, ...]) -> np.ndarray:
      field = packed[..., place]
      if self.dtype == np.uint8 and name not in ('o_tm1', 'o_t'):
        field = np.ascontiguousarray(field).view(np.float32)
      return field.reshape((*leading, *shape))

    fields = Transition(
      *map(inner, Transition._fields, self.slices, self._inner_shapes)
    )
    if self.discrete:
      fields = fields._replace(a_tm1=fields.a_tm1.astype(np.int32))
    return fields

  def _unpack_tensor(self, packed: Any) -> Transition:
    import tensorflow as tf

    leading = tf.shape(packed)[:-1]

    def inner(name: str, field: Any, shape: tuple[int, ...]) -> Any:
      if self.dtype == np.uint8 and name not in ('o_tm1', 'o_t'):
        split = tf.concat([leading, [math.prod(shape), 4]], 0)
        field = tf.bitcast(tf.reshape(field, split), tf.float32)
      if not shape:
        return tf.squeeze(field, -1)
      if len(shape) == 1:
        return field
      return tf.reshape(field, tf.concat([leading, shape], 0))

    # One split is used instead of a strided slice for each field.
    parts = tf.split(packed, self.sizes, axis=-1)
    fields = Transition(
      *map(inner, Transition._fields, parts, self._inner_shapes)
    )
    if self.discrete:
      fields = fields._replace(a_tm1=tf.cast(fields.a_tm1, tf.int32))
    return fields


def from_signature(spec: Any) -> TransitionLayout | None:
  """The layout in the name of a table's tf.TensorSpec, as a server returns it.

  None if the items are not packed transitions.
  """
  match = _NAME.fullmatch(getattr(spec, 'name', None) or '')
  if match is None or not spec.shape.rank:
    return None

  def shape(text: str) -> tuple[int, ...]:
    return () if text == 'scalar' else tuple(map(int, text.split('x')))

  dtype, observation, action_dtype, action = match.groups()
  layout = TransitionLayout(
    shape(observation), shape(action), action_dtype == 'int32', dtype
  )
  if spec.shape[-1] != layout.width or spec.dtype != layout.dtype:
    return None
  return layout
