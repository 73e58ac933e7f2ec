"""Rate limiters: who waits for whom between writers and learners.

How far either side may be ahead of the ratio is the error buffer. Whether a
whole plan of writers, batches and shards can stop is answered in deadlock.py.
"""

from __future__ import annotations

import math

import reverb


def min_size(num_items: int) -> reverb.rate_limiters.RateLimiter:
  """Sampling waits until the table holds `num_items` items.

  Raises:
    ValueError: num_items is below 1.
  """
  if num_items < 1:
    raise ValueError(
      f'min_size={num_items} must be at least 1 item: an empty table cannot be '
      'sampled.'
    )
  return reverb.rate_limiters.MinSize(int(num_items))


def least_error_buffer(
  samples_per_insert: float,  # pylint: disable=redefined-outer-name
) -> float:
  """The smallest buffer with which a table never stops both sides, in samples.

  What more is needed where one thread writes and samples: deadlock.py.
  """
  return max(1.0, float(samples_per_insert))


def default_error_buffer(
  samples_per_insert: float,  # pylint: disable=redefined-outer-name
  min_size: int,  # pylint: disable=redefined-outer-name
  batch_size: int,
  prefetch: int,
  writers: int,
) -> float:
  """The error buffer of a plan that names none, in samples.

  Twice the larger of what sampler and writers hold back is at least what both
  hold together, so it suits one thread that writes and samples, too.
  """
  return float(
    max(
      2 * batch_size * (prefetch + 1),
      2 * samples_per_insert * writers,
      0.1 * min_size * samples_per_insert,
      least_error_buffer(samples_per_insert),
    )
  )


def samples_per_insert(
  samples_per_insert: float,  # pylint: disable=redefined-outer-name
  min_size: int,  # pylint: disable=redefined-outer-name
  error_buffer: float,
) -> reverb.rate_limiters.RateLimiter:
  """Keeps samples / inserts near a ratio, once `min_size` items are there.

  Both sides can block: writers that run ahead, and a learner that does.

  Args:
    samples_per_insert: times an item is sampled on average, items per item.
    min_size: items in the table before the first sample.
    error_buffer: samples by which either side may be ahead.

  Raises:
    ValueError: a number is out of range, or the buffer so small that the table
      could stop writers and sampler at once.
  """
  if not (math.isfinite(samples_per_insert) and samples_per_insert > 0):
    raise ValueError(
      f'samples_per_insert={samples_per_insert} must be a positive number. To '
      'sample without a ratio, use limiters.min_size.'
    )
  if min_size < 1:
    raise ValueError(f'min_size={min_size} must be at least 1 item.')
  least = least_error_buffer(samples_per_insert)
  if not error_buffer >= least:
    raise ValueError(
      f'error_buffer={error_buffer} is too small: max(1, samples_per_insert='
      f'{samples_per_insert:g}) = {least:g} is needed, or inserts and samples '
      f'block each other. Raise error_buffer to at least {least:g}.'
    )
  return reverb.rate_limiters.SampleToInsertRatio(
    samples_per_insert=float(samples_per_insert),
    min_size_to_sample=int(min_size),
    error_buffer=float(error_buffer),
  )
