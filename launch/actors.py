"""How many actors there are, what each has, and how replay paces them."""

from __future__ import annotations

import dataclasses

from agents import checks


@dataclasses.dataclass(frozen=True)
class Config:
  """The actor side of `actor_learner`, and how replay paces it."""

  num_actors: int = 2  # N, a process each
  envs_per_actor: int = 8  # K, stepped together
  update_period: int = 64  # environment steps of an actor between fetches
  max_param_age_s: float = 60.0  # older than this, the actor waits
  samples_per_insert: float | None = 8.0  # None: unthrottled, as in the paper
  error_buffer: float | None = None  # samples either side may be ahead
  shards: int = 1  # replay servers; actor i writes to shard i mod S
  queue_batches: int = 4  # of unrolls: batches that may wait to be learned from
  max_lag: int | None = None  # of unrolls: older blocks, in learner steps, drop

  def __post_init__(self):
    checks.whole(
      self,
      'actors',
      (
        'num_actors',
        'envs_per_actor',
        'update_period',
        'shards',
        'queue_batches',
      ),
    )
    checks.positive(
      self, 'actors', ('max_param_age_s', 'samples_per_insert', 'error_buffer')
    )
    if self.shards > self.num_actors:
      raise ValueError(
        f'actors.shards={self.shards} are more than actors.num_actors='
        f'{self.num_actors}: actor i writes to shard i mod shards, so some '
        'would stay empty. Use as many shards as actors at most.'
      )
