"""Makes Reverb tables, with their numbers checked before the server starts.

Signatures come from `packing.TransitionLayout.signature`: `()` for single
transitions [W], `(P,)` for population steps [P, W].
"""

from __future__ import annotations

import math
from typing import Any

import reverb


def uniform(
  name: str,
  max_size: int,
  min_size: int,
  signature: Any,
  rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
) -> reverb.Table:
  """Uniform replay: the oldest item leaves when the table is full.

  Args:
    name: name of the table.
    max_size: items kept.
    min_size: items before the first sample.
    signature: (nested) tf.TensorSpec of one item.
    rate_limiter: such as `deadlock.limiter(plan)`, which is checked with the
      rest of the plan; by default, samples wait only for `min_size`.

  Raises:
    ValueError: a number or a name is invalid.
  """
  sampler = reverb.selectors.Uniform()
  return _table(name, sampler, max_size, min_size, signature, rate_limiter)


def prioritized(
  name: str,
  max_size: int,
  min_size: int,
  signature: Any,
  priority_exponent: float = 0.6,
  rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
) -> reverb.Table:
  """Prioritized replay: items of priority p are drawn in proportion to p^alpha.

  Reverb raises the stored priority to alpha itself: store p, never p^alpha.
  `priority_exponent` is alpha >= 0, 0.6 in Schaul et al. 2016,
  arXiv:1511.05952; for the other arguments see `uniform`.

  Raises:
    ValueError: a number or a name is invalid.
  """
  if not (math.isfinite(priority_exponent) and priority_exponent >= 0):
    raise ValueError(
      f'priority_exponent={priority_exponent} of table {name!r} must be a '
      'number of at least 0 (0 samples uniformly).'
    )
  sampler = reverb.selectors.Prioritized(float(priority_exponent))
  return _table(name, sampler, max_size, min_size, signature, rate_limiter)


def queue(name: str, max_size: int, signature: Any) -> reverb.Table:
  """A queue: each item is sampled once, in order; a full queue blocks writers.

  Read it with one worker (`readers.make_dataset(..., num_workers=1)`). At most
  `max_size` items wait; `signature` is that of one item, as of `uniform`.

  Raises:
    ValueError: a number or a name is invalid.
  """
  _check(name, max_size, 1)
  return reverb.Table.queue(
    name=name, max_size=int(max_size), signature=signature
  )


def _table(name, sampler, max_size, min_size, signature, limiter):
  _check(name, max_size, min_size)
  return reverb.Table(
    name=name,
    sampler=sampler,
    remover=reverb.selectors.Fifo(),
    max_size=int(max_size),
    rate_limiter=limiter or reverb.rate_limiters.MinSize(int(min_size)),
    signature=signature,
  )


def _check(name: str, max_size: int, min_size: int) -> None:
  if not name:
    raise ValueError('A table needs a name that is not empty.')
  if max_size < 1:
    raise ValueError(
      f'max_size={max_size} of table {name!r} must be at least 1 item.'
    )
  if not 1 <= min_size <= max_size:
    raise ValueError(
      f'min_size={min_size} of table {name!r} must lie in [1, '
      f'max_size={max_size}], or its first sample never comes. Lower min_size '
      'or raise max_size.'
    )
