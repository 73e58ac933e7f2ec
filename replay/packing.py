"""A transition in one float32 column.

Reverb's cost is per item and per column, so the fields of a transition travel
side by side in one vector of width W (5 columns cost about 2.5 times as much
to sample as 1):

  o_tm1 | a_tm1 | r_t | d_t | o_t | weight

r_t is the n-step reward sum R and d_t the n-step discount D of nstep.py, so
the learner's target is r_t + gamma * d_t * value(o_t). weight is 1, or 0 where
there is no transition at this place of a population's array.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# float32 holds every integer up to here; discrete actions travel as float32.
MAX_DISCRETE_ACTION = 2**24


class Transition(NamedTuple):
  """Fields of a transition; every field has the same leading shape [...].

  Attributes:
    o_tm1: observation acted on, float32 [..., *observation_shape].
    a_tm1: action taken, int32 [...], or float32 [..., *action_shape].
    r_t: n-step reward sum R, float32 [...], environment reward units.
    d_t: n-step discount D without its last gamma, float32 [...].
    o_t: observation after the last reward, float32 [..., *observation_shape].
    weight: 1 for a transition, 0 for none, float32 [...].
  """

  o_tm1: Any
  a_tm1: Any
  r_t: Any
  d_t: Any
  o_t: Any
  weight: Any


@dataclasses.dataclass(frozen=True)
class TransitionLayout:
  """Where each field of a transition lies in its column.

  Attributes:
    observation_shape: shape of one observation. Other dtypes become float32.
    action_shape: shape of one action; () for a discrete one.
    discrete: whether actions are integers (unpacked as int32) or float32.
  """

  observation_shape: tuple[int, ...]
  action_shape: tuple[int, ...] = ()
  discrete: bool = True

  def __post_init__(self):
    for field in ('observation_shape', 'action_shape'):
      shape = tuple(int(size) for size in getattr(self, field))
      if any(size < 1 for size in shape):
        raise ValueError(
          f'{field}={shape} has an empty axis: every size must be at least 1. '
          'Pass the shape of one observation or action, without a batch axis.'
        )
      object.__setattr__(self, field, shape)

  @functools.cached_property
  def observation_size(self) -> int:
    """Floats in one observation."""
    return math.prod(self.observation_shape)

  @functools.cached_property
  def action_size(self) -> int:
    """Floats in one action."""
    return math.prod(self.action_shape)

  @functools.cached_property
  def sizes(self) -> tuple[int, ...]:
    """Floats in each field, in the order of `Transition`."""
    observation = self.observation_size
    return (observation, self.action_size, 1, 1, observation, 1)

  @functools.cached_property
  def slices(self) -> Transition:
    """Place of each field in the last axis, as slices."""
    ends = np.cumsum(self.sizes).tolist()
    return Transition(
      *(
        slice(end - size, end)
        for size, end in zip(self.sizes, ends, strict=True)
      )
    )

  @functools.cached_property
  def width(self) -> int:
    """Floats in one packed transition, W."""
    return sum(self.sizes)

  def signature(self, *leading: int) -> tf.TensorSpec:
    """Signature of a table whose items are packed transitions [*leading, W]."""
    return tf.TensorSpec((*leading, self.width), tf.float32, name='transition')

  def pack(
    self,
    o_tm1: Any,
    a_tm1: Any,
    r_t: Any,
    d_t: Any,
    o_t: Any,
    weight: Any = 1.0,
    out: np.ndarray | None = None,
  ) -> np.ndarray:
    """Packs arrays with a common leading shape [...].

    Args:
      o_tm1, a_tm1, r_t, d_t, o_t, weight: see `Transition`. All but o_tm1 may
        also broadcast to the leading shape of o_tm1.
      out: float32 [..., W] to write to; made when not given.

    Returns:
      float32 [..., W], `out` where given.

    Raises:
      ValueError: a field does not fit the layout.
    """
    rank = len(self.observation_shape)
    shape = np.shape(o_tm1)
    leading = shape[: len(shape) - rank]
    if shape[len(leading) :] != self.observation_shape:
      raise ValueError(
        f'o_tm1 has shape {shape}, which does not end in the '
        f'observation_shape {self.observation_shape} of this layout. Pack '
        'observations of the environment that the layout was made for.'
      )
    if out is None:
      out = np.empty((*leading, self.width), np.float32)
    elif out.shape != (*leading, self.width) or out.dtype != np.float32:
      raise ValueError(
        f'out is {out.dtype} {out.shape}, but float32 '
        f'{(*leading, self.width)} is needed for o_tm1 of shape {shape}.'
      )
    inner = Transition(
      self.observation_shape,
      self.action_shape,
      (),
      (),
      self.observation_shape,
      (),
    )
    values = Transition(o_tm1, a_tm1, r_t, d_t, o_t, weight)
    for name, place, field_shape, value in zip(
      Transition._fields, self.slices, inner, values, strict=True
    ):
      try:
        value = np.broadcast_to(value, (*leading, *field_shape))
      except ValueError as e:
        raise ValueError(
          f'{name} has shape {np.shape(value)}, but {(*leading, *field_shape)} '
          'is needed: the leading shape of o_tm1, then the shape of the field.'
        ) from e
      out[..., place] = value.reshape((*leading, math.prod(field_shape)))
    return out

  def unpack(self, packed: Any) -> Transition:
    """The fields of packed transitions.

    Args:
      packed: float32 [..., W], NumPy array or TensorFlow tensor (also inside a
        tf.function or a tf.vectorized_map).

    Returns:
      A `Transition` of the same kind. NumPy observations are views.

    Raises:
      ValueError: the last axis is not W.
    """
    if packed.shape[-1] != self.width:
      raise ValueError(
        f'packed transitions have shape {tuple(packed.shape)}, but this layout '
        f'needs a last axis of {self.width} '
        f'(observation_shape={self.observation_shape}). Writer and reader must '
        'use the same environment.'
      )
    if isinstance(packed, np.ndarray):
      return self._unpack_numpy(packed)
    return self._unpack_tensor(packed)

  def _unpack_numpy(self, packed: np.ndarray) -> Transition:
    leading = packed.shape[:-1]
    fields = Transition(*(packed[..., place] for place in self.slices))
    action = fields.a_tm1.reshape((*leading, *self.action_shape))
    return Transition(
      o_tm1=fields.o_tm1.reshape((*leading, *self.observation_shape)),
      a_tm1=action.astype(np.int32) if self.discrete else action,
      r_t=fields.r_t[..., 0],
      d_t=fields.d_t[..., 0],
      o_t=fields.o_t.reshape((*leading, *self.observation_shape)),
      weight=fields.weight[..., 0],
    )

  def _unpack_tensor(self, packed: Any) -> Transition:
    # One split instead of six strided slices.
    fields = Transition(*tf.split(packed, self.sizes, axis=-1))
    shape = tf.shape(packed)[:-1]

    def inner(field: tf.Tensor, field_shape: tuple[int, ...]) -> tf.Tensor:
      if not field_shape:
        return tf.squeeze(field, -1)
      if len(field_shape) == 1:
        return field
      reshaped = tf.reshape(field, tf.concat([shape, field_shape], 0))
      return tf.ensure_shape(reshaped, packed.shape[:-1] + field_shape)

    action = inner(fields.a_tm1, self.action_shape)
    return Transition(
      o_tm1=inner(fields.o_tm1, self.observation_shape),
      a_tm1=tf.cast(action, tf.int32) if self.discrete else action,
      r_t=inner(fields.r_t, ()),
      d_t=inner(fields.d_t, ()),
      o_t=inner(fields.o_t, self.observation_shape),
      weight=inner(fields.weight, ()),
    )
