"""One flat float32 vector holds all trainable variables of an agent.

Parameters are exchanged, mixed, sharded, pulled and perturbed as `theta [D]`;
a population is `[P, D]`. A `Layout` maps variables to slices. Target networks
and optimizer state are never part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import math
import struct
from typing import Any

import numpy as np

_MAGIC = b'MURM'
# magic, fingerprint of the layout, version, number of parameters
_HEADER = struct.Struct('<4s16sqq')


class LayoutMismatch(ValueError):
  """Parameters of one network were given to another network."""


@dataclasses.dataclass(frozen=True)
class Variable:
  """One trainable variable inside the flat vector."""

  name: str
  shape: tuple[int, ...]
  offset: int

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  @property
  def slice(self) -> slice:
    return slice(self.offset, self.offset + self.size)


class Layout:
  """Where each variable lies in `theta [D]`.

  Variables keep the given order, so nodes that build the same network have
  equal fingerprints, and a difference is detected before vectors are mixed.
  """

  def __init__(
    self,
    shapes: Iterable[tuple[str, Sequence[int]]],
    groups: Mapping[str, Sequence[str]] | None = None,
  ):
    """Makes a layout.

    Args:
      shapes: (name, shape) of each variable, in order.
      groups: lists of variable names by group, such as 'policy' and 'critic'.
        A group must be contiguous, so that it is one slice.

    Raises:
      ValueError: two variables share a name, there is no variable, or a group
        has unknown variables or is not contiguous.
    """
    variables, offset = [], 0
    for name, shape in shapes:
      variable = Variable(name, tuple(int(n) for n in shape), offset)
      variables.append(variable)
      offset += variable.size
    names = [v.name for v in variables]
    if len(set(names)) != len(names):
      raise ValueError(f'Variable names must differ, got {names}.')
    if not variables:
      raise ValueError('A layout needs at least one variable, got none.')
    self.variables = tuple(variables)
    self.size = offset
    self.groups = {
      group: self._contiguous(group, members)
      for group, members in (groups or {}).items()
    }
    text = ';'.join(f'{v.name}:{v.shape}' for v in self.variables)
    self.fingerprint = hashlib.sha256(text.encode()).digest()[:16]

  def _contiguous(self, group: str, members: Sequence[str]) -> slice:
    by_name = {v.name: v for v in self.variables}
    unknown = [name for name in members if name not in by_name]
    if unknown or not members:
      raise ValueError(
        f'Group {group!r} names {unknown or "no variable"}; the layout has '
        f'{list(by_name)}.'
      )
    chosen = sorted((by_name[name] for name in members), key=lambda v: v.offset)
    for before, after in zip(chosen, chosen[1:]):
      if before.slice.stop != after.offset:
        raise ValueError(
          f'Group {group!r} is not contiguous: {after.name!r} does not follow '
          f'{before.name!r}. Order the variables group by group.'
        )
    return slice(chosen[0].offset, chosen[-1].slice.stop)

  @property
  def sizes(self) -> list[int]:
    return [v.size for v in self.variables]

  @property
  def shapes(self) -> list[tuple[int, ...]]:
    return [v.shape for v in self.variables]

  def __eq__(self, other) -> bool:
    return isinstance(other, Layout) and self.fingerprint == other.fingerprint

  def __hash__(self) -> int:
    return hash(self.fingerprint)

  def __repr__(self) -> str:
    parts = ', '.join(f'{v.name}{list(v.shape)}' for v in self.variables)
    return f'Layout({self.size} parameters: {parts})'

  def pack(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Variables, in layout order, to `theta [D]` float32."""
    got = [tuple(np.shape(a)) for a in arrays]
    if got != self.shapes:
      raise LayoutMismatch(f'Got shapes {got}, the layout needs {self.shapes}.')
    return np.concatenate(
      [np.asarray(a, np.float32).reshape(-1) for a in arrays]
    )

  def unpack(self, theta: np.ndarray) -> list[np.ndarray]:
    """`theta [..., D]` to views `[..., *shape]`, one per variable. No copy."""
    theta = np.asarray(theta)
    if theta.shape[-1] != self.size:
      raise LayoutMismatch(
        f'Got a vector of {theta.shape[-1]} parameters; {self!r} needs '
        f'{self.size}.'
      )
    lead = theta.shape[:-1]
    return [theta[..., v.slice].reshape(lead + v.shape) for v in self.variables]


class Prepared:
  """What a network's `prepare` makes of theta, kept until theta is another.

  It compares identities (`is`): where `prepare` copies, a theta that is changed
  in place is not noticed.
  """

  def __init__(self, layout: Layout, prepare: Callable[..., Any]):
    self._layout, self._prepare = layout, prepare
    self._known: tuple[np.ndarray | None, Any] = (None, None)

  def __call__(self, theta: np.ndarray) -> Any:
    """Of `theta [P, D]`, or [D] if P = 1."""
    known, prepared = self._known
    if theta is not known:
      rows = theta.reshape(-1, self._layout.size)
      prepared = self._prepare(self._layout.unpack(rows))
      self._known = (theta, prepared)
    return prepared


def encode(layout: Layout, version: int, theta: np.ndarray) -> bytes:
  """Encodes `theta [D]`, its version and the layout's fingerprint as bytes."""
  theta = np.ascontiguousarray(theta, np.float32)
  if theta.shape != (layout.size,):
    raise LayoutMismatch(
      f'Got parameters of shape {theta.shape}, {layout!r} needs '
      f'({layout.size},).'
    )
  header = _HEADER.pack(_MAGIC, layout.fingerprint, version, theta.size)
  return header + theta.tobytes()


def check_encoded(layout: Layout, data: bytes) -> None:
  """Raises LayoutMismatch unless `data` was encoded with this layout."""
  if len(data) < _HEADER.size or data[:4] != _MAGIC:
    raise LayoutMismatch(
      f'Got {len(data)} bytes that are not encoded parameters.'
    )
  _, fingerprint, _, size = _HEADER.unpack_from(data)
  if fingerprint != layout.fingerprint:
    raise LayoutMismatch(
      f'The sender has another network ({size} parameters, layout '
      f'{fingerprint.hex()[:8]}); this node has {layout!r}, layout '
      f'{layout.fingerprint.hex()[:8]}. Give all nodes the same network sizes '
      'and the same environment.'
    )
  if len(data) != _HEADER.size + 4 * size:
    raise LayoutMismatch(
      f'Got {len(data)} bytes for {size} parameters: the message is cut off.'
    )


def decode(layout: Layout, data: bytes) -> tuple[int, np.ndarray]:
  """Bytes of `encode` to (version, `theta [D]`, read-only).

  Raises:
    LayoutMismatch: the sender has another network, or the bytes are cut off.
  """
  check_encoded(layout, data)
  _, _, version, _ = _HEADER.unpack_from(data)
  return version, np.frombuffer(data, np.float32, offset=_HEADER.size)
