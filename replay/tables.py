"""Makes Reverb tables. deadlock.py checks their numbers.

Signatures come from `packing.TransitionLayout.signature`: `()` for single
transitions [W], `(P,)` for population steps [P, W].
"""

from __future__ import annotations

from typing import Any

import reverb


def uniform(
  name: str,
  max_size: int,
  min_size: int,
  signature: Any,
  rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
  sampler: Any = None,
) -> reverb.Table:
  """Uniform replay: the oldest item leaves when the table is full.

  Args:
    name: name of the table.
    max_size: items kept.
    min_size: items before the first sample.
    signature: (nested) tf.TensorSpec of one item.
    rate_limiter: such as `deadlock.limiter(plan)`; by default, samples wait
      only for `min_size`.
    sampler: another selector.

  Raises:
    ValueError: min_size is more than max_size.
  """
  if min_size > max_size:
    raise ValueError(
      f'Table {name!r}: min_size={min_size} is more than max_size={max_size}, '
      'so its first sample would never come.'
    )
  return reverb.Table(
    name=name,
    sampler=sampler or reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=int(max_size),
    rate_limiter=rate_limiter or reverb.rate_limiters.MinSize(int(min_size)),
    signature=signature,
  )


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
  """
  sampler = reverb.selectors.Prioritized(float(priority_exponent))
  return uniform(name, max_size, min_size, signature, rate_limiter, sampler)


def queue(name: str, max_size: int, signature: Any) -> reverb.Table:
  """A queue: each item is sampled once, in order; a full queue blocks writers.

  Read it with one worker (`readers.make_dataset(..., num_workers=1)`). At most
  `max_size` items wait; `signature` is that of one item, as of `uniform`.
  """
  return reverb.Table.queue(
    name=name, max_size=int(max_size), signature=signature
  )
