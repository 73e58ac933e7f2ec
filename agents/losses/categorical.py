"""Categorical value distributions: the projected Bellman target and its loss.

A distribution has fixed atoms `z [K]`, equally spaced from v_min to v_max, and
a probability for each. Bellemare et al. 2017, arXiv:1707.06887 (C51); for
continuous control Barth-Maron et al. 2018, arXiv:1804.08617 (D4PG).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Distance in atoms that rounding may move mass beyond the support.
_ROUNDING = 1e-3


class Target(NamedTuple):
  """A Bellman target on the support. No gradient flows through it.

  Attributes:
    probabilities: rows sum to 1, [B, K].
    clipped: share of the mass that lay outside the support, [B].
    unclipped_mean: mean of r_t + discount_t * Z before clipping, [B].
  """

  probabilities: tf.Tensor
  clipped: tf.Tensor
  unclipped_mean: tf.Tensor


def support(v_min: float, v_max: float, num_atoms: int) -> np.ndarray:
  """The atoms z_j = v_min + j (v_max - v_min) / (K - 1), float32 [K]."""
  return np.linspace(v_min, v_max, num_atoms, dtype=np.float32)


def project(
  positions: tf.Tensor, probabilities: tf.Tensor, num_atoms: int
) -> tf.Tensor:
  """Shares mass between its two neighbouring atoms (Bellemare et al., Eq. 7).

    m_j = sum_k p_k [1 - |x_k - j|]_0^1

  Every source is compared with every atom: K^2 products cost less here than a
  scatter, and are vectorised over a population without a loop.

  Args:
    positions: of the mass x, in atoms from v_min, within 0 .. K-1, [B, S].
    probabilities: mass p at each position, [B, S].
    num_atoms: K.

  Returns:
    m, [B, K].
  """
  tf.debugging.assert_shapes(
    [(positions, ('B', 'S')), (probabilities, ('B', 'S'))]
  )
  grid = tf.cast(tf.range(num_atoms), positions.dtype)[:, None]  # [K, 1]
  distance = tf.abs(positions[:, None, :] - grid)  # [B, K, S]
  share = tf.nn.relu(1 - distance)
  return tf.reduce_sum(share * probabilities[:, None, :], axis=-1)


def bellman_target(
  r_t: tf.Tensor, discount_t: tf.Tensor, p_t: tf.Tensor, atoms: np.ndarray
) -> Target:
  """The distribution of r_t + discount_t * Z(s_t), projected on the atoms.

  Args:
    r_t: reward, or its n-step sum, [B].
    discount_t: includes all of gamma; 0 after a termination, [B].
    p_t: target network's probabilities at s_t, [B, K].
    atoms: z, equally spaced, [K].
  """
  tf.debugging.assert_shapes(
    [(r_t, ('B',)), (discount_t, ('B',)), (p_t, ('B', 'K')), (atoms, ('K',))]
  )
  last = len(atoms) - 1
  v_min, width = atoms[0], (atoms[-1] - atoms[0]) / last
  shifted = r_t[:, None] + discount_t[:, None] * atoms
  positions = (shifted - v_min) / width
  outside = tf.logical_or(positions < -_ROUNDING, positions > last + _ROUNDING)
  inside = tf.clip_by_value(positions, 0, last)
  target = Target(
    project(inside, p_t, len(atoms)),
    tf.reduce_sum(p_t * tf.cast(outside, p_t.dtype), axis=-1),
    r_t + discount_t * mean(p_t, atoms),
  )
  return tf.nest.map_structure(tf.stop_gradient, target)


def cross_entropy(target: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """- sum_j m_j log softmax(logits)_j, [B], from two [B, K]."""
  tf.debugging.assert_shapes([(target, ('B', 'K')), (logits, ('B', 'K'))])
  return tf.nn.softmax_cross_entropy_with_logits(target, logits)


def entropy(probabilities: tf.Tensor) -> tf.Tensor:
  """- sum_j m_j log m_j, [B], from [B, K]; an atom without mass adds 0."""
  tiny = np.finfo(probabilities.dtype.as_numpy_dtype).tiny
  logs = tf.math.log(tf.maximum(probabilities, tiny))
  return -tf.reduce_sum(probabilities * logs, axis=-1)


def mean(probabilities: tf.Tensor, atoms: np.ndarray) -> tf.Tensor:
  """The expected value, [B], from probabilities [B, K]."""
  return tf.reduce_sum(probabilities * atoms, axis=-1)
