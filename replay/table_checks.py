"""Checks tables of a server: do items fit, and why do reads or writes wait?"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import time
from typing import Any

import reverb
import tensorflow as tf

from murmuration.replay import packing


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
  inserts: int
  samples: int

  @property
  def unlimited(self) -> bool:
    """Whether the limiter enforces only the minimum size."""
    return unlimited(self)

  @property
  def is_queue(self) -> bool:
    return is_queue(self)

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


def unlimited(limiter: Any) -> bool:
  """Whether a limiter holds no ratio, only a minimum size."""
  # MinSize sets these to the largest and smallest float.
  return limiter.max_diff - limiter.min_diff > 1e300


def is_queue(limiter: Any) -> bool:
  """Whether a limiter is the one of Reverb's queue or stack."""
  return (
    limiter.samples_per_insert == 1
    and limiter.min_size_to_sample == 1
    and limiter.min_diff == 0
  )


def live_limiter(info: Any) -> Limiter:
  """The rate limiter of a table, from the table's `server_info`."""
  limits = info.rate_limiter_info
  inserts, samples = limits.insert_stats, limits.sample_stats
  return limiter_of(limits, inserts.completed, samples.completed)


def limiter_of(limits: Any, inserts: int, samples: int) -> Limiter:
  return Limiter(
    limits.samples_per_insert,
    limits.min_size_to_sample,
    limits.min_diff,
    limits.max_diff,
    inserts,
    samples,
  )


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
  while True:
    try:
      return client.server_info(timeout=1)
    except (RuntimeError, reverb.errors.DeadlineExceededError) as e:
      address = client.server_address
      if should_stop():
        raise ConnectionError(
          f'The wait for the Reverb server at {address} was ended: the run is '
          'stopping.'
        ) from e
      if time.monotonic() + 1 > deadline:
        raise ConnectionError(
          f'The Reverb server at {address} did not answer within {timeout_s:g} '
          's. Start it first, or correct the address.'
        ) from e
      say(f'the Reverb server at {address} does not answer')
      time.sleep(0.1)


def named(client: reverb.Client, tables: dict[str, Any], table: str) -> Any:
  """One of a server's `tables`.

  Raises:
    ValueError: there is no such table.
  """
  if table not in tables:
    raise ValueError(
      f'The Reverb server at {client.server_address} has no table {table!r}, '
      f'only {", ".join(sorted(tables)) or "none"}. Use one of these.'
    )
  return tables[table]


def signature(
  client: reverb.Client, table: str, wanted: Any, *patience: Any
) -> Any:
  """The signature of a table, checked against the wanted one.

  Args:
    client, table: the table to ask for.
    wanted: (nested) tf.TensorSpec of the items to write or read, or None.
    *patience: further arguments of `tables`.

  Raises:
    ConnectionError: the server does not answer.
    ValueError: the table does not exist, holds other items, or has no signature
      although `wanted` is None.
  """
  address = client.server_address
  held = named(client, tables(client, *patience), table).signature
  if held is None and wanted is None:
    raise ValueError(
      f'Table {table!r} at {address} has no signature. Give the table one, or '
      'pass signature=.'
    )
  if held is None or wanted is None:
    return held if wanted is None else wanted
  theirs, ours = tf.nest.flatten(held), tf.nest.flatten(wanted)
  fits = len(theirs) == len(ours) and all(
    spec.is_compatible_with(other) for spec, other in zip(theirs, ours)
  )
  if fits:
    # Two different layouts may have the same width.
    layouts = [packing.from_signature(specs[0]) for specs in (theirs, ours)]
    fits = None in layouts or layouts[0] == layouts[1]
  if not fits:
    raise ValueError(
      f'Table {table!r} at {address} holds {held}, but {wanted} is written or '
      'read here. Make table, writer and sampler for the same environment, '
      'layout and number of members.'
    )
  return wanted


def now(client: reverb.Client, table: str) -> Any:
  """The server's information on a table; None if it takes more than 1 s."""
  try:
    return tables(client).get(table)
  except ConnectionError:
    return None


def lets_through(info: Any) -> bool:
  """Whether the rate limiter of a table allows the next sample now."""
  return not live_limiter(info).samples_wait(info.current_size)


def why_starved(table: str, address: str, info: Any) -> str:
  """Explains in a sentence why a table that answers gives no samples."""
  limiter, size = live_limiter(info), info.current_size
  words = f'Waiting for table {table!r} at {address}: it holds {size:,} items'
  if size < limiter.min_size_to_sample:
    return f'{words} and gives samples from {limiter.min_size_to_sample:,} on.'
  if limiter.samples_wait(size):
    return (
      f'{words}, but sampling is {-limiter.behind:,.0f} samples ahead of '
      f'{limiter.samples_per_insert:g} per insert. The learner waits for '
      'writers.'
    )
  return f'{words}, and its limiter lets samples through.'


def why_blocked(client: reverb.Client, table: str, waited_s: float) -> str:
  """Explains why a table took no item for `waited_s`, from its state now."""
  address = client.server_address
  info = now(client, table)
  if info is None:
    return (
      f'No item reached table {table!r} within {waited_s:.3g} s: the Reverb '
      f'server at {address} does not answer, or no longer has that table. Look '
      'into the log of the node that has it: replay, or the learner.'
    )
  limiter = live_limiter(info)
  return (
    f'Table {table!r} at {address} took no item for {waited_s:.3g} s: its rate '
    f'limiter (samples_per_insert={limiter.samples_per_insert:g}, '
    f'min_size={limiter.min_size_to_sample}, min_diff={limiter.min_diff:g}, '
    f'max_diff={limiter.max_diff:g}) blocks inserts at size '
    f'{info.current_size} of {info.max_size}, after {limiter.inserts} inserts '
    f'and {limiter.samples} samples. Sample from it, or raise the error buffer '
    'or the size of the table.'
  )
