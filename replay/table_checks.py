"""Checks tables of a server: do items fit, and why do reads or writes wait?"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import time
from typing import Any

import reverb
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Limiter:
  """Reverb's rate limiter, and its counters.

  The cursor is inserts * samples_per_insert - samples. Inserts wait if it would
  exceed max_diff. Samples wait if it would fall below min_diff, or if the table
  has fewer than min_size_to_sample items.
  """

  samples_per_insert: float
  min_size_to_sample: int
  min_diff: float
  max_diff: float
  inserts: int = 0
  samples: int = 0

  @property
  def unlimited(self) -> bool:
    """Whether the limiter enforces only the minimum size."""
    # MinSize sets these to the largest and smallest float.
    return self.max_diff - self.min_diff > 1e300

  @property
  def is_queue(self) -> bool:
    """Whether it is the limiter of Reverb's queue or stack."""
    found = self.samples_per_insert, self.min_size_to_sample, self.min_diff
    return found == (1, 1, 0)

  @property
  def cursor(self) -> float:
    return self.inserts * self.samples_per_insert - self.samples

  @property
  def behind(self) -> float:
    """Samples by which sampling lags behind the ratio; negative: ahead."""
    return self.cursor - (self.min_diff + self.max_diff) / 2

  def inserts_wait(self, size: int) -> bool:
    if size + 1 <= self.min_size_to_sample:
      return False
    return self.cursor + self.samples_per_insert > self.max_diff

  def samples_wait(self, size: int) -> bool:
    return size < self.min_size_to_sample or self.cursor - 1 < self.min_diff


def limiter_of(limits: Any, inserts: int = 0, samples: int = 0) -> Limiter:
  """From the limits in a table's `rate_limiter_info` or its checkpoint."""
  return Limiter(
    limits.samples_per_insert,
    limits.min_size_to_sample,
    limits.min_diff,
    limits.max_diff,
    inserts,
    samples,
  )


def live_limiter(info: Any) -> Limiter:
  """The rate limiter of a table, from the table's `server_info`."""
  limits = info.rate_limiter_info
  inserts, samples = limits.insert_stats, limits.sample_stats
  return limiter_of(limits, inserts.completed, samples.completed)


def tables(
  client: reverb.Client,
  timeout_s: float = 1.0,
  should_stop: Callable[[], bool] = lambda: False,
  say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
  """The `server_info` of a server's tables, by name; waits for the server.

  Args:
    timeout_s: how long to wait, at least 1 s.
    should_stop: called each second; Reverb's C++ cannot be interrupted.
    say: called each second with what is waited for.

  Raises:
    ConnectionError: the server does not answer, or should_stop() is true.
  """
  deadline = time.monotonic() + timeout_s
  where = f'the Reverb server at {client.server_address}'
  while True:
    try:
      return client.server_info(timeout=1)
    except (RuntimeError, reverb.errors.DeadlineExceededError) as e:
      if should_stop():
        raise ConnectionError(
          f'The run stops while it waits for {where}.'
        ) from e
      if time.monotonic() + 1 > deadline:
        raise ConnectionError(
          f'T{where[1:]} did not answer within {timeout_s:g} s.'
        ) from e
      say(f'{where} does not answer')
      time.sleep(0.1)


def signature(
  client: reverb.Client, table: str, wanted: Any, *patience: Any
) -> Any:
  """The signature of a table, checked against the wanted one.

  Args:
    wanted: (nested) tf.TensorSpec of the items to write or read, or None.
    *patience: further arguments of `tables`.

  Raises:
    ConnectionError: the server does not answer.
    ValueError: the table does not exist, holds other items, or has no signature
      although `wanted` is None.
  """
  where = f'table {table!r} at {client.server_address}'
  there = tables(client, *patience)
  if table not in there:
    raise ValueError(f'There is no {where}, only {", ".join(sorted(there))}.')
  held = there[table].signature
  if held is None and wanted is None:
    raise ValueError(f'The {where} has no signature: pass signature=.')
  if held is None or wanted is None:
    return held if wanted is None else wanted
  theirs, ours = tf.nest.flatten(held), tf.nest.flatten(wanted)
  if len(theirs) != len(ours) or not all(
    spec.is_compatible_with(other) and _layout(spec) == _layout(other)
    for spec, other in zip(theirs, ours)
  ):
    raise ValueError(
      f'The {where} holds {held}, but {wanted} is written or read here. Make '
      'table, writer and sampler for the same environment, layout and number '
      'of members.'
    )
  return wanted


def _layout(spec: Any) -> str | None:
  """Name of a transition's layout: two layouts may have the same width."""
  name = spec.name or ''
  return name if name.startswith('transition') else None


def now(client: reverb.Client, table: str) -> Any:
  """The server's information on a table; None if it takes more than 1 s."""
  try:
    return tables(client).get(table)
  except ConnectionError:
    return None


def lets_through(info: Any) -> bool:
  """Whether the rate limiter of a table allows the next sample now."""
  return not live_limiter(info).samples_wait(info.current_size)


def why(table: str, address: str, info: Any) -> str:
  """Says in a sentence who waits for whom at a table, from its `now`."""
  if info is None:
    return f'Waiting for table {table!r} at {address}: it does not answer.'
  limiter, size = live_limiter(info), info.current_size
  if size < limiter.min_size_to_sample:
    state = f'gives samples from {limiter.min_size_to_sample:,} on'
  elif limiter.samples_wait(size):
    state = 'samples wait for inserts'
  elif limiter.inserts_wait(size):
    state = 'inserts wait for samples'
  else:
    state = 'its limiter lets both through'
  return (
    f'Waiting for table {table!r} at {address}: it holds {size:,} of '
    f'{info.max_size:,} items, after {limiter.inserts:,} inserts and '
    f'{limiter.samples:,} samples (samples_per_insert='
    f'{limiter.samples_per_insert:g}): {state}.'
  )
