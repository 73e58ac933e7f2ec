"""Reverb tables with their numbers checked before the server starts.

Signatures come from `packing.TransitionLayout.signature`: `()` for single
transitions [W], `(P,)` for population steps [P, W].
"""

import math
from typing import Any

import reverb

from replay import limiters


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
    rate_limiter: from limiters.py; default `limiters.min_size(min_size)`.

  Raises:
    ValueError: a number or a name that could not work.
  """
  _check(name, max_size, min_size, rate_limiter=rate_limiter)
  return reverb.Table(
    name=name,
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=int(max_size),
    rate_limiter=rate_limiter or limiters.min_size(min_size),
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

  Args:
    name: name of the table.
    max_size: items kept.
    min_size: items before the first sample.
    signature: (nested) tf.TensorSpec of one item.
    priority_exponent: alpha >= 0; 0.6 in Schaul et al. 2016, arXiv:1511.05952.
    rate_limiter: from limiters.py; default `limiters.min_size(min_size)`.

  Raises:
    ValueError: a number or a name that could not work.
  """
  _check(name, max_size, min_size, rate_limiter=rate_limiter)
  if not (math.isfinite(priority_exponent) and priority_exponent >= 0):
    raise ValueError(
      f'priority_exponent={priority_exponent} of table {name!r} must be a '
      'number of at least 0 (0 samples uniformly).'
    )
  return reverb.Table(
    name=name,
    sampler=reverb.selectors.Prioritized(float(priority_exponent)),
    remover=reverb.selectors.Fifo(),
    max_size=int(max_size),
    rate_limiter=rate_limiter or limiters.min_size(min_size),
    signature=signature,
  )


def queue(name: str, max_size: int, signature: Any) -> reverb.Table:
  """A queue: each item is sampled once, in order; a full queue blocks writers.

  Read it with one worker (`datasets.make_dataset(..., num_workers=1)`).

  Args:
    name: name of the table.
    max_size: items that wait at most.
    signature: (nested) tf.TensorSpec of one item.

  Raises:
    ValueError: a number or a name that could not work.
  """
  _check(name, max_size, 1)
  return reverb.Table.queue(
    name=name, max_size=int(max_size), signature=signature
  )


def stack(
  name: str,
  max_size: int,
  signature: Any,
  *,
  min_size: int = 1,
  max_times_sampled: int = 1,
  remover: str = 'fifo',
  rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
) -> reverb.Table:
  """A stack: the newest item is sampled first.

  Args:
    name: name of the table.
    max_size: items kept.
    signature: (nested) tf.TensorSpec of one item.
    min_size: items before the first sample.
    max_times_sampled: times an item is sampled before it leaves; 0: as often as
      it is the newest.
    remover: 'fifo': a full stack drops its oldest item, and no writer waits.
      'lifo', Reverb's own stack: it drops nothing, and writers wait; for items
      sampled once.
    rate_limiter: from limiters.py; default `limiters.min_size(min_size)`. Not
      for 'lifo', which brings its own.

  Raises:
    ValueError: a number, a remover or a name that could not work.
  """
  if remover not in ('fifo', 'lifo'):
    raise ValueError(
      f"remover={remover!r} of table {name!r} is not known. Choose 'fifo' or "
      "'lifo'."
    )
  _check(name, max_size, min_size, max_times_sampled, rate_limiter)
  if remover == 'lifo':
    if max_times_sampled != 1 or min_size != 1 or rate_limiter is not None:
      raise ValueError(
        f"remover='lifo' of table {name!r} makes writers wait for room, which "
        'only comes where items leave after one sample. Leave '
        f'max_times_sampled={max_times_sampled} and min_size={min_size} at 1 '
        "and rate_limiter at None, or set remover='fifo'."
      )
    return reverb.Table.stack(
      name=name, max_size=int(max_size), signature=signature
    )
  return reverb.Table(
    name=name,
    sampler=reverb.selectors.Lifo(),
    remover=reverb.selectors.Fifo(),
    max_size=int(max_size),
    max_times_sampled=int(max_times_sampled),
    rate_limiter=rate_limiter or limiters.min_size(min_size),
    signature=signature,
  )


def max_heap(
  name: str,
  max_size: int,
  min_size: int,
  signature: Any,
  *,
  max_times_sampled: int = 0,
  rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
) -> reverb.Table:
  """The item of the highest priority is sampled first, the lowest leaves first.

  Its `probability` is 1: the choice is not random. A new item of the lowest
  priority does not enter a full table.

  Args:
    name: name of the table.
    max_size: items kept.
    min_size: items before the first sample.
    signature: (nested) tf.TensorSpec of one item.
    max_times_sampled: times an item is sampled before it leaves; 0: as often as
      it is the highest.
    rate_limiter: from limiters.py; default `limiters.min_size(min_size)`.

  Raises:
    ValueError: a number or a name that could not work.
  """
  _check(name, max_size, min_size, max_times_sampled, rate_limiter)
  return reverb.Table(
    name=name,
    sampler=reverb.selectors.MaxHeap(),
    remover=reverb.selectors.MinHeap(),
    max_size=int(max_size),
    max_times_sampled=int(max_times_sampled),
    rate_limiter=rate_limiter or limiters.min_size(min_size),
    signature=signature,
  )


def _check(
  name: str,
  max_size: int,
  min_size: int,
  max_times_sampled: int = 0,
  rate_limiter: reverb.rate_limiters.RateLimiter | None = None,
) -> None:
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
  if max_times_sampled < 0:
    raise ValueError(
      f'max_times_sampled={max_times_sampled} of table {name!r} must be at '
      'least 0, which means without limit.'
    )
  if rate_limiter is None:
    return
  ratio, first = limiters.ratio(rate_limiter), limiters.first(rate_limiter)
  if first > max_size:
    raise ValueError(
      f'The rate limiter of table {name!r} waits for {first} items, but '
      f'max_size={max_size}: the first sample never comes. Lower min_size of '
      'the limiter or raise max_size.'
    )
  if ratio is not None and 0 < max_times_sampled < ratio:
    raise ValueError(
      f'{ratio:g} samples per insert cannot be met by table {name!r}, where an '
      f'item leaves after max_times_sampled={max_times_sampled} samples. Raise '
      'max_times_sampled or lower samples_per_insert.'
    )
