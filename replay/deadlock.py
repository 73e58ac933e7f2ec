"""Can limiter, batch, read-ahead and items in flight block each other?

Reverb's rule answers this before anything starts. With I inserts, S samples, m
the minimum size, r samples per insert, E the error buffer, and the error

  x = r I - S,

a table of at least m items

  takes an insert  while x + r <= r m + E,
  gives a sample   while x - 1 >= r m - E.

Both wait only if r m + E - r < x < r m - E + 1, so never if 2 E >= 1 + r;
Reverb requires E >= max(1, r). If both sides have a request pending, one of the
two then goes through. Writers and samplers in separate threads always have one
pending, whatever they hold back: a partial batch waits for the rest with an
open request, and a writer that has used up its items in flight waits with an
open insert. So batch, read-ahead, bursts and items in flight limit the pace but
never stop it. Two things do:

- A shard without a writer, or whose writers have ended: the learner waits for
  its part of the batch and, if a ratio is held, so do all other shards.
- A table smaller than what its limiter waits for.

A single thread that both writes and samples has no request of one kind pending
while it waits for the other. Workers that do both keep the pace themselves:
their replay plan has no ratio.
"""

from __future__ import annotations

import dataclasses

import reverb


class Refused(ValueError):
  """A plan whose parts would block each other."""


@dataclasses.dataclass(frozen=True)
class Plan:
  """What the writers and the sampler of a replay service intend.

  Attributes:
    min_size: items in all shards before the first sample.
    max_size: items in all shards; of a queue, the most that wait.
    batch_size: items of one call of the learner: updates * B.
    updates: in one call; each takes items of every shard.
    samples_per_insert: None limits nothing but the start.
    error_buffer: samples in each shard by which either side may be ahead; None:
      see `shard_error_buffer`.
    max_in_flight: items of each shard that each worker of the sampler requests
      ahead, besides the batch that it reads during the learner's update.
    writers: writers in total; writer i writes to shard i mod shards.
    burst: items that a writer holds back and writes at once.
    shards: over which items and samples are spread evenly.
    queue: each item is sampled once; min_size is 1.
  """

  min_size: int
  max_size: int
  batch_size: int
  samples_per_insert: float | None = None
  error_buffer: float | None = None
  max_in_flight: int = 1024
  writers: int = 1
  burst: int = 1
  shards: int = 1
  queue: bool = False
  updates: int = 1

  def _of_shard(self, number: int) -> int:
    """The largest part of `number` that a shard has."""
    return -(-number // self.shards)

  @property
  def shard_min_size(self) -> int:
    """Items in a shard before its first sample."""
    return self._of_shard(self.min_size)

  @property
  def shard_max_size(self) -> int:
    """Maximum number of items in a shard."""
    return self._of_shard(self.max_size)

  @property
  def ratio(self) -> float | None:
    """Samples per insert that a limiter holds, or None."""
    return 1.0 if self.queue else self.samples_per_insert

  @property
  def shard_error_buffer(self) -> float | None:
    """Error buffer of one shard's limiter, in samples; None without a ratio.

    By default, twice the larger of what the sampler (its batch and the next)
    and the writers hold back, but at least 0.1 * ratio * shard_min_size. That
    is more than `least_error_buffer`.
    """
    ratio = self.samples_per_insert
    if self.queue or ratio is None:
      return None
    if self.error_buffer is not None:
      return self.error_buffer
    return float(
      max(
        4 * self._of_shard(self.batch_size),
        2 * ratio * self._of_shard(self.writers) * self.burst,
        0.1 * ratio * self.shard_min_size,
      )
    )


def check(plan: Plan) -> None:
  """Refuses a plan under which a run could stop.

  Raises:
    Refused: with the number to change.
  """
  if plan.writers < plan.shards:
    raise Refused(
      f'writers={plan.writers} for shards={plan.shards}: a shard without a '
      'writer gives no samples, and the learner waits for its part of each '
      f'batch for ever. Raise writers to at least {plan.shards}, or lower '
      f'shards to {plan.writers}.'
    )
  if plan.batch_size < plan.updates * plan.shards:
    raise Refused(
      f'batch_size={plan.batch_size} of updates={plan.updates} cannot be '
      f'spread over shards={plan.shards}, of which each gives a part of every '
      f'update. Raise batch_size to at least {plan.updates * plan.shards}, or '
      'lower shards.'
    )
  if plan.min_size > plan.max_size:
    raise Refused(
      f'min_size={plan.min_size} is more than max_size={plan.max_size}, so the '
      f'first sample never comes. Raise max_size to at least {plan.min_size}, '
      'or lower min_size.'
    )
  if plan.error_buffer is None:
    return
  if plan.samples_per_insert is None:
    raise Refused(
      'error_buffer means nothing without samples_per_insert. Set one, or both '
      'to None.'
    )
  least = least_error_buffer(plan.samples_per_insert)
  if not plan.error_buffer >= least:
    raise Refused(
      f'error_buffer={plan.error_buffer:g} is too small: max(1, '
      f'samples_per_insert={plan.samples_per_insert:g}) = {least:g} are '
      'needed, or inserts and samples block each other. Raise error_buffer to '
      f'at least {least:g}, or leave it None.'
    )


def limiter(plan: Plan) -> reverb.rate_limiters.RateLimiter:
  """The rate limiter of each shard. A queue has its own: `tables.queue`.

  Raises:
    Refused: see `check`.
  """
  check(plan)
  if plan.samples_per_insert is None or plan.shard_error_buffer is None:
    return reverb.rate_limiters.MinSize(plan.shard_min_size)
  return reverb.rate_limiters.SampleToInsertRatio(
    plan.samples_per_insert, plan.shard_min_size, plan.shard_error_buffer
  )


def lockstep(plan: Plan) -> bool:
  """Whether all shards go at the pace of the slowest.

  The learner takes equal parts of all shards, and each limiter holds its
  writers to what is taken. Every writer must then write until all have ended.
  """
  return plan.shards > 1 and plan.ratio is not None


def parts(plan: Plan, total: int) -> list[int]:
  """Splits `total` over the writers so that they end together.

  In lockstep every shard gets the same, and its writers share that: 3 writers
  of 2 shards make a quarter, a half and a quarter. Otherwise all make the same.
  """
  shards = plan.shards if lockstep(plan) else 1
  return [
    _part(
      _part(total, shards, writer % shards),
      _part(plan.writers, shards, writer % shards),
      writer // shards,
    )
    for writer in range(plan.writers)
  ]


def _part(total: int, count: int, index: int) -> int:
  """Part `index` of `total` split into `count` whole numbers."""
  return total // count + (index < total % count)


def least_error_buffer(ratio: float) -> float:
  """The smallest one, in samples, that never stops both sides."""
  return max(1.0, float(ratio))
